"""Serving/Sharing-v0: many small models on a few nodes, token by token."""
