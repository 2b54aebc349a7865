"""Serving/Sharing-v1: many small models on a few nodes, token by token."""
