"""A ladder of layouts whose thresholds depend on the traffic: for searches over parameters, of which it has few.

Rungs are the layouts of equal engines, the widest first. Between two neighbours a sum of what is seen, weighted, says
whether the narrower one is called for; a band keeps what is there. An untrained one is what a practitioner would write
(`baselines.common.load_threshold`): few wide engines until so many requests are in the system.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from gymnasium import spaces
from torch import nn

from agents.dp_tp.layout_network import layout_ranks
from agents.networks import DecisionNetwork, Observation, Rows
from envs.backend import SwitchMode
from envs.dp_tp.action import NUM_MODES
from envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES, ObservationScales

INPUTS = (  # each about 1 or less where it matters; rates are arrivals a second, prompts their mean tokens
    "one",
    "in_flight",  # log of requests in the system over 25
    "growth",  # log of the rate of the last interval over that of some seconds
    "rate_short",  # log of the rate over 20
    "rate_long",
    "prompt_short",  # log of the mean prompt over 1000 tokens
    "prompt_long",
    "kv_usage",  # of the fullest engine
    "prefill_backlog_s",  # log1p of scales of the observation, of the engine with the most
    "ttft_misses",  # of the class with the most
    "tpot_misses",
    "stay",  # t / (1 + t), t the seconds that requests stay: how many are in flight over how many arrive (Little's law)
    "context_tokens",
    "other_classes",  # share of arrivals that are not of the class with the most
)
_IN_FLIGHT, _RATE, _PROMPT = 25.0, 20.0, 1000.0
_FEWEST = 200.0  # prompt tokens a second that count as if they always came, in prompts of a thousand
_LESS = 1e-3  # by which one way of switching is better than the next
_STAY = 0.5  # rungs: below a step, above none
_NEVER = 100.0  # rungs; what is not a rung
_BEGIN_REQUESTS = 24.0  # in the system, at which the second rung is left
_BEGIN_GROWTH = 80.0  # times as many, for the next one
_BAND = -math.log(0.4)

_CLUSTER = {name: CLUSTER_FEATURES.index(name) for name in CLUSTER_FEATURES}
_ENGINE = {name: ENGINE_FEATURES.index(name) for name in ENGINE_FEATURES}
_CLASS = {name: CLASS_FEATURES.index(name) for name in CLASS_FEATURES}
_SCALES = ObservationScales()


class LadderNetwork(DecisionNetwork):
    """Scores of layouts by how many rungs they are from the one that is called for.

    Requests that run are treated as nobody is made to wait who could go on: merges are soft, splits hard. Quantities
    are read with the usual scales of the observation; with others, thresholds mean other quantities.

    Args:
        observation: What is seen: `engines` and `cluster`.
    """

    pooled_size = 0
    any_length = ("cluster",)  # it ends with figures of however many classes of requests

    def __init__(self, observation: spaces.Dict) -> None:
        super().__init__()
        num_base = (observation["engines"].shape or (0,))[0]
        ranks = torch.as_tensor(layout_ranks(num_base), dtype=torch.float32)
        self.most = int(ranks.max())
        self.ranks: torch.Tensor
        self.rungs: torch.Tensor
        self.register_buffer("ranks", ranks)
        even = ranks.std(dim=1, correction=0) == 0
        self.register_buffer("rungs", torch.where(even, self.most - ranks[:, 0], _NEVER))
        self.weights = nn.Parameter(_begin(self.most))
        self.bands = nn.Parameter(torch.full((self.most,), _BAND))

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """What thresholds depend on, the target width of every base engine, and nothing of all together."""
        cluster, engines = observation["cluster"], observation["engines"]
        classes = cluster[:, len(CLUSTER_FEATURES) :].reshape(len(cluster), -1, len(CLASS_FEATURES))

        def quantity(name: str, scale: float) -> torch.Tensor:
            return scale * torch.expm1(cluster[:, _CLUSTER[name]])

        def highest(name: str) -> torch.Tensor:
            return engines[:, :, _ENGINE[name]].amax(dim=1)

        def prompt(span: str) -> torch.Tensor:
            tokens = quantity(f"token_rate_{span}", _SCALES.token_rate) + _FEWEST
            requests = quantity(f"request_rate_{span}", _SCALES.request_rate) + _FEWEST / _PROMPT
            return torch.log(tokens / requests / _PROMPT)

        in_flight = quantity("num_in_flight", _SCALES.requests)
        now, short, long = (
            quantity(f"request_rate_{span}", _SCALES.request_rate) for span in ("now", "short", "long")
        )
        of_classes = torch.expm1(classes[:, :, _CLASS["request_rate_short"]])
        every = of_classes.sum(dim=1)
        values = {
            "one": torch.ones_like(in_flight),
            "in_flight": torch.log((in_flight + 1.0) / _IN_FLIGHT),
            "growth": torch.log((now + 1.0) / (short + 1.0)),
            "rate_short": torch.log((short + 1.0) / _RATE),
            "rate_long": torch.log((long + 1.0) / _RATE),
            "prompt_short": prompt("short"),
            "prompt_long": prompt("long"),
            "kv_usage": highest("kv_usage"),
            "prefill_backlog_s": highest("prefill_backlog_s"),
            "ttft_misses": classes[:, :, _CLASS["ttft_misses_short"]].amax(dim=1),
            "tpot_misses": classes[:, :, _CLASS["tpot_misses_short"]].amax(dim=1),
            "stay": in_flight / (in_flight + long).clamp(min=_LESS),
            "context_tokens": highest("context_tokens"),
            "other_classes": (every - of_classes.amax(dim=1)) / every.clamp(min=_LESS),
        }
        inputs = torch.stack([values[name] for name in INPUTS], dim=1)
        present = torch.round(engines[:, :, _ENGINE["target_width"]] * self.most)
        return (inputs, present), cluster.new_zeros(len(cluster), 0)

    def wanted(self, inputs: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """(batch,), the rung that is called for: how many thresholds are passed.

        Args:
            inputs: (batch, INPUTS).
            present: (batch, base engines), log2 of target widths.
        """
        rung = self.most - present.mean(dim=1, keepdim=True)
        begun = inputs[:, INPUTS.index("rate_long"), None] > math.log(1.0 / _RATE)
        passed = torch.arange(self.most) < torch.round(rung)
        sums = inputs @ self.weights.T + self.bands.abs() * (passed & begun)
        return (sums > 0.0).sum(dim=1)

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, 1): minus how far a layout is from the rung that is called for."""
        inputs, present = rows
        wanted = self.wanted(inputs, present).unsqueeze(1)
        same = (present.unsqueeze(1) == self.ranks).all(dim=2)
        off = (self.rungs - wanted).abs()
        off = torch.where(same & (off > 0), torch.full_like(off, _STAY), off)
        merges = (self.ranks > present.unsqueeze(1)).any(dim=2)
        ways = torch.where(merges.unsqueeze(2), _ORDER_MERGE, _ORDER_SPLIT)
        ways = torch.where(same.unsqueeze(2), _ORDER_STAY, ways)
        return (-off.unsqueeze(2) - _LESS * ways).flatten(1).unsqueeze(2)

    def last_layers(self) -> Iterable[nn.Module]:
        """None: it begins as a rule that serves."""
        return ()


def _begin(most: int) -> torch.Tensor:
    """(most, INPUTS), thresholds on requests in the system alone; the first rung is left before any came."""
    weights = torch.zeros(most, len(INPUTS))
    weights[:, INPUTS.index("in_flight")] = 1.0
    for i in range(most):
        requests = _BEGIN_REQUESTS * _BEGIN_GROWTH ** (i - 1)
        weights[i, INPUTS.index("one")] = (
            math.log(_IN_FLIGHT / (requests + 1.0)) if i else math.log(2.0 * _IN_FLIGHT)
        )
    return weights


def _order(*modes: SwitchMode) -> torch.Tensor:
    """(modes,), place of each in an order."""
    places = torch.zeros(NUM_MODES)
    places[list(modes)] = torch.arange(NUM_MODES, dtype=torch.float32)
    return places


_ORDER_MERGE = _order(SwitchMode.SOFT, SwitchMode.SEQUENTIAL, SwitchMode.HARD)
_ORDER_SPLIT = _order(SwitchMode.HARD, SwitchMode.SEQUENTIAL, SwitchMode.SOFT)
_ORDER_STAY = _order(SwitchMode.SEQUENTIAL, SwitchMode.SOFT, SwitchMode.HARD)
