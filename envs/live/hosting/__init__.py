"""Routing policies for front ends that are not ours: a host that keeps them safe, and a server that speaks JSON."""
