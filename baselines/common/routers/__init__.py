"""Routers that a practitioner would otherwise run, one a file; their prefix indices are in `prefix_index`."""
