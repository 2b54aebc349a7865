"""Adapters of the environments for learners."""
