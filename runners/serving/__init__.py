"""Serves policies over HTTP and in Ray Serve."""
