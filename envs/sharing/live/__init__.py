"""Sharing of this machine: instances of several models are launched on its nodes, and unloaded, as a policy says."""
