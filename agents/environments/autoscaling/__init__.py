"""Agents that decide how many instances there are."""
