"""Environments on live servers."""
