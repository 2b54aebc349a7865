"""A network that says how wide engines should be: for searches over parameters, of which it has few.

The width that is wanted (log2 of base engines per engine) is linear in what is seen, most of it logarithms of loads.
Each way a band says how far from it the present layout may be. A layout is as wide as its base engines are in the mean;
what it mixes widths costs it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from agents.dp_tp.layout_network import layout_ranks
from agents.networks import DecisionNetwork, Observation, Rows
from envs.backend import SwitchMode
from envs.dp_tp.action import NUM_MODES
from envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES, ObservationScales

_RATES = (
    "num_in_flight",
    "num_pooled",
    "request_rate_now",
    "request_rate_short",
    "request_rate_long",
    "token_rate_now",
    "token_rate_short",
    "token_rate_long",
)
_HIGHEST = ("prefill_backlog_s", "num_running", "kv_usage", "context_tokens")  # of all engines

_MISSES = ("ttft_misses_short", "tpot_misses_short")  # the highest of all classes of requests

INPUTS = (
    "one",
    *_RATES,
    *_HIGHEST,
    *_MISSES,
    "stay",  # t / (1 + t), t the seconds that requests stay: how many are in flight over how many arrive (Little's law)
)
# Before any search: the whole node for next to no load, narrower from tens of thousands of prompt tokens a second on
_BEGIN = {"one": 6.0, "token_rate_now": -0.6, "token_rate_short": -0.6}
_BANDS = (0.6, 0.6)  # halvings that are let be, when wider engines are wanted and when narrower ones are
_MIXED = 1.0  # what a standard deviation of one halving costs
_CLUSTER = [CLUSTER_FEATURES.index(name) for name in _RATES]
_CLASSES = [CLASS_FEATURES.index(name) for name in _MISSES]
_ENGINES = [ENGINE_FEATURES.index(name) for name in _HIGHEST]
_SCALES = ObservationScales()
_IN_FLIGHT, _RATE = CLUSTER_FEATURES.index("num_in_flight"), CLUSTER_FEATURES.index("request_rate_long")
_TARGET_WIDTH = ENGINE_FEATURES.index("target_width")
_LESS = 1e-3  # by which one way of switching is better than the next


class WidthNetwork(DecisionNetwork):
    """Scores of layouts by how wide they are, and of ways to get there: nobody is made to wait who could go on.

    Args:
        observation: What is seen: `engines` and `cluster`.
    """

    pooled_size = 0
    any_length = ("cluster",)  # it ends with figures of however many classes of requests

    def __init__(self, observation: spaces.Dict) -> None:
        super().__init__()
        num_base = (observation["engines"].shape or (0,))[0]
        ranks = layout_ranks(num_base)
        self.most = int(ranks.max())
        self.ranks: torch.Tensor
        self.register_buffer("ranks", torch.as_tensor(ranks, dtype=torch.float32))
        self.weights = nn.Parameter(torch.tensor([_BEGIN.get(name, 0.0) for name in INPUTS]))
        self.bands = nn.Parameter(torch.tensor(_BANDS))
        self.mixed = nn.Parameter(torch.tensor(_MIXED))

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """What the width depends on, the target width of every base engine, and nothing of all together."""
        cluster, engines = observation["cluster"], observation["engines"]
        one = torch.ones_like(cluster[:, :1])
        classes = cluster[:, len(CLUSTER_FEATURES) :].reshape(len(cluster), -1, len(CLASS_FEATURES))
        highest = engines[:, :, _ENGINES].amax(dim=1), classes[:, :, _CLASSES].amax(dim=1)
        in_flight = _SCALES.requests * torch.expm1(cluster[:, _IN_FLIGHT, None])
        rate = _SCALES.request_rate * torch.expm1(cluster[:, _RATE, None])
        stay = in_flight / (in_flight + rate).clamp(min=_LESS)
        inputs = torch.cat([one, cluster[:, _CLUSTER], *highest, stay], dim=1)
        present = torch.round(engines[:, :, _TARGET_WIDTH] * self.most)
        return (inputs, present), cluster.new_zeros(len(cluster), 0)

    def wanted(self, inputs: torch.Tensor) -> torch.Tensor:
        """(batch,), log2 of the width that is wanted, in base engines.

        Args:
            inputs: (batch, INPUTS).
        """
        return (inputs @ self.weights).clamp(0.0, float(self.most))

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, 1): minus how far a layout is from the wanted width."""
        inputs, present = rows
        wanted = self.wanted(inputs).unsqueeze(1)
        mixed = self.mixed.abs() * self.ranks.std(dim=1, correction=0)
        off = (wanted - self.ranks.mean(dim=1)).abs() + mixed
        same = (present.unsqueeze(1) == self.ranks).all(dim=2)
        wider, narrower = self.bands.abs()
        band = torch.where(wanted > present.mean(dim=1, keepdim=True), wider, narrower)
        scores = -off + band * same
        merges = (self.ranks > present.unsqueeze(1)).any(dim=2)
        ways = torch.where(merges.unsqueeze(2), _ORDER_MERGE, _ORDER_SPLIT)
        ways = torch.where(same.unsqueeze(2), _ORDER_STAY, ways)
        return (scores.unsqueeze(2) - _LESS * ways).flatten(1).unsqueeze(2)

    def last_layers(self) -> Iterable[nn.Module]:
        """None: it begins as a rule that serves."""
        return ()


def _order(*modes: SwitchMode) -> torch.Tensor:
    """(modes,), place of each in an order."""
    places = np.empty(NUM_MODES, np.float32)
    places[list(modes)] = np.arange(NUM_MODES)
    return torch.as_tensor(places)


_ORDER_MERGE = _order(SwitchMode.SOFT, SwitchMode.SEQUENTIAL, SwitchMode.HARD)
_ORDER_SPLIT = _order(SwitchMode.HARD, SwitchMode.SEQUENTIAL, SwitchMode.SOFT)
_ORDER_STAY = _order(SwitchMode.SEQUENTIAL, SwitchMode.SOFT, SwitchMode.HARD)
