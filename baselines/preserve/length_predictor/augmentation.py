"""Balance of response lengths (section 4.2): over-sampling of rare lengths with text perturbation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.preserve.length_predictor.synonyms import Synonyms, perturbed


def bucket_of(lengths: NDArray[np.float64], num_buckets: int) -> NDArray[np.int64]:
    """Bucket of each length, (N,), from 0; buckets divide the range of the lengths evenly, each without its upper end.

    Args:
        lengths: (N,), tokens; the longest falls into the last bucket.
        num_buckets: at least 1.
    """
    edges = np.linspace(lengths.min(), lengths.max(), num_buckets + 1)
    return np.clip(np.searchsorted(edges, lengths, side="right") - 1, 0, num_buckets - 1)


def augment(
    prompts: Sequence[str],
    lengths: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    num_buckets: int,
    fill_share: float,
    replaced_share: float,
    synonyms: Synonyms,
) -> tuple[list[str], NDArray[np.float64]]:
    """Training data in which no bucket that holds anything is rarer than a share of the largest.

    A bucket of fewer than mu * S samples, S those of the largest, is filled until it has mu * S, rounded up. What is
    added is a sample of the bucket, drawn with replacement, some of its words replaced by synonyms, its length
    unchanged. An empty bucket has nothing to draw from and stays empty.

    Args:
        prompts: (N,).
        lengths: (N,), tokens.
        rng: which samples, words and synonyms.
        num_buckets: N of the paper.
        fill_share: mu, 0 to 1.
        replaced_share: of the words of an added prompt, 0 to 1.
        synonyms: by word in lower case; where there are none, copies are added as they are.

    Returns:
        The given prompts and lengths, in their order, and behind them those added.
    """
    bucket = bucket_of(lengths, num_buckets)
    counts = np.bincount(bucket, minlength=num_buckets)
    wanted = fill_share * counts.max()
    texts, added = list(prompts), [lengths]
    for number in np.flatnonzero((counts > 0) & (counts < wanted)):
        drawn = rng.choice(np.flatnonzero(bucket == number), size=math.ceil(wanted) - counts[number])
        texts += [perturbed(prompts[row], synonyms, replaced_share, rng) for row in drawn]
        added.append(lengths[drawn])
    return texts, np.concatenate(added)
