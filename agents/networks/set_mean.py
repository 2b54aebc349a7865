"""Several networks over sets as one, whose scores are a weighted mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from serving_gym.agents.networks.set_network import SetNetwork


def mean_network(networks: Sequence[SetNetwork], weights: Sequence[float]) -> SetNetwork:
    """A network as wide as all of them, side by side: it runs, and is trained further, as any other of its width.

    Args:
        networks: At least one, of the same features, each with one hidden layer of its width behind what is made of the
            rows, and without a memory.
        weights: What the scores of each weigh; positive, of any sum.
    """
    first, width = networks[0], sum(each.row.in_features for each in networks)
    context_size = first.row_context.in_features
    shares = [weight / sum(weights) for weight in weights]
    mean = SetNetwork(
        context_size,
        first.row_place.in_features,
        width,
        (width,),
        first.present,
        direct=first.direct is not None,
    )
    with torch.no_grad():
        for name in ("row_place", "row_context"):  # read the same
            layers = [getattr(each, name) for each in networks]
            _fill(getattr(mean, name), torch.cat([layer.weight for layer in layers]), layers)
        for name in ("row", "score_row"):  # read what is their own
            layers = [getattr(each, name) for each in networks]
            _fill(getattr(mean, name), _apart([layer.weight for layer in layers]), layers)
        for name in ("score_pool", "hold_pool"):  # read means and maxima of their own, and the same context
            layers = [getattr(each, name) for each in networks]
            means, maxima, contexts = zip(
                *(layer.weight.split([len(layer.weight)] * 2 + [context_size], dim=1) for layer in layers),
                strict=True,
            )
            weight = torch.cat([_apart(means), _apart(maxima), torch.cat(contexts)], dim=1)
            _fill(getattr(mean, name), weight, layers)
        for name in ("score", "hold"):
            last, lasts = getattr(mean, name)[-1], [getattr(each, name)[-1] for each in networks]
            last.weight.copy_(
                torch.cat([one.weight * s for one, s in zip(lasts, shares, strict=True)], dim=1)
            )
            last.bias.copy_(_weighted([one.bias for one in lasts], shares))
        if mean.direct is not None:
            mean.direct.copy_(
                _weighted([each.direct for each in networks if each.direct is not None], shares)
            )
    return mean


def _fill(layer: nn.Linear, weight: torch.Tensor, layers: Sequence[nn.Linear]) -> None:
    """Weights as given, and the biases of all layers, if they have any."""
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(torch.cat([each.bias for each in layers]))


def _weighted(vectors: Sequence[torch.Tensor], shares: Sequence[float]) -> torch.Tensor:
    return torch.stack([each * share for each, share in zip(vectors, shares, strict=True)]).sum(dim=0)


def _apart(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Each reads what is its own."""
    matrix: torch.Tensor = torch.block_diag(*weights)  # type: ignore[no-untyped-call]
    return matrix
