"""Simulated clusters that are cut into replicas anew while they serve."""
