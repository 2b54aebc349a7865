"""Latency predictions against measurements of real engines."""
