"""Learned policies: networks, trainers, checkpoints. Each becomes a `Policy`."""
