"""Reads servers and serving processes at intervals, and shows them in the terminal."""
