"""Datasets of episodes for offline learning, in Minari's format."""
