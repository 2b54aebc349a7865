"""Simulated fleets: replicas that are started, stopped, resized, slowed and lost."""
