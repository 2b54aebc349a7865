"""Policies behind HTTP and behind Ray Serve."""
