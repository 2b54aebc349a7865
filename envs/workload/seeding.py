"""Random streams that depend only on their names and a seed."""

from __future__ import annotations

import zlib

import numpy as np


def seed_sequence(seed: int, *names: str) -> np.random.SeedSequence:
    """Seed sequence of one named purpose.

    Names enter through CRC-32, which is the same in every process (``hash`` is not).

    Args:
        seed: what the user calls the seed; at least 0.
        names: what the stream is for, e.g. a workload's name and its split.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    return np.random.SeedSequence([seed, *(zlib.crc32(name.encode()) for name in names)])


def stream(seed: int, *names: str) -> np.random.Generator:
    """Random generator of one named purpose (see :func:`seed_sequence`)."""
    return np.random.default_rng(seed_sequence(seed, *names))


def child(seed: np.random.SeedSequence, *names: str) -> np.random.SeedSequence:
    """Seed sequence of one named purpose of a stream; whatever else is drawn from `seed`, it stays the same."""
    key = (*seed.spawn_key, *(zlib.crc32(name.encode()) for name in names))
    return np.random.SeedSequence(seed.entropy, spawn_key=key)
