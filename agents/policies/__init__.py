"""Trained networks as policies."""
