"""Learned placement on shared nodes."""
