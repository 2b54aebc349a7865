"""Offline learning: from datasets of episodes alone, without an environment to act in."""
