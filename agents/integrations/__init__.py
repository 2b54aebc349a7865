"""Environments and policies in the form that other libraries of reinforcement learning take."""
