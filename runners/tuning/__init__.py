"""Searches over the constants of policies."""
