"""Scores of policies given as programs, for searches over programs."""
