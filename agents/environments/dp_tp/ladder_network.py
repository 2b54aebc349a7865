"""A ladder of layouts whose thresholds depend on the traffic: for searches over parameters, of which it has few.

Rungs are the layouts of equal engines, the widest first. Between two neighbours a sum of what is seen, weighted, says
whether the narrower one is called for; a band keeps what is there. An untrained one is what a practitioner would write
(`baselines.common.load_threshold`): few wide engines until so many requests are in the system. It is compiled and has
no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from gymnasium import spaces
from numba import njit
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.dp_tp.candidates import MERGING, SPLITTING, STAYING
from serving_gym.agents.environments.dp_tp.layout_network import layout_ranks
from serving_gym.agents.networks.networks import DecisionNetwork, Observation
from serving_gym.envs.dp_tp.action import NUM_MODES
from serving_gym.envs.dp_tp.observation import (
    CLASS_FEATURES,
    CLUSTER_FEATURES,
    ENGINE_FEATURES,
    ObservationScales,
)
from serving_gym.envs.interface.commands import SwitchMode

FloatArray = NDArray[np.float32]
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

_NUM_CLUSTER, _NUM_CLASS = len(CLUSTER_FEATURES), len(CLASS_FEATURES)
_NUM_IN_FLIGHT = CLUSTER_FEATURES.index("num_in_flight")
_RATE_NOW, _RATE_SHORT, _RATE_LONG = (
    CLUSTER_FEATURES.index(f"request_rate_{span}") for span in ("now", "short", "long")
)
_TOKENS_SHORT, _TOKENS_LONG = (CLUSTER_FEATURES.index(f"token_rate_{span}") for span in ("short", "long"))
_KV_USAGE, _BACKLOG, _CONTEXT, _WIDTH = (
    ENGINE_FEATURES.index(name)
    for name in ("kv_usage", "prefill_backlog_s", "context_tokens", "target_width")
)
_CLASS_RATE, _TTFT_MISSES, _TPOT_MISSES = (
    CLASS_FEATURES.index(name) for name in ("request_rate_short", "ttft_misses_short", "tpot_misses_short")
)
_REQUESTS_SCALE = ObservationScales().requests
_REQUEST_RATE_SCALE, _TOKEN_RATE_SCALE = ObservationScales().request_rate, ObservationScales().token_rate
_BEGUN = INPUTS.index("rate_long")


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
        self.ranks = layout_ranks(num_base).astype(np.float32)
        self.most = int(self.ranks.max())
        even = self.ranks.std(axis=1) == 0
        self.rungs = np.where(even, self.most - self.ranks[:, 0], _NEVER).astype(np.float32)
        self.weights = nn.Parameter(_begin(self.most))
        self.bands = nn.Parameter(torch.full((self.most,), _BAND))

    def forward(self, observation: Observation) -> torch.Tensor:
        """(batch, actions, 1): minus how far a layout is from the rung that is called for."""
        cluster, engines = observation["cluster"].numpy(), observation["engines"].numpy()
        weights, bands = self.weights.detach().numpy(), self.bands.detach().numpy()
        scores = np.empty((len(cluster), len(self.ranks) * NUM_MODES, 1), np.float32)
        for i in range(len(cluster)):
            _score(
                ladder_inputs(cluster[i], engines[i]),
                engines[i],
                weights,
                bands,
                self.ranks,
                self.rungs,
                scores[i],
            )
        return torch.from_numpy(scores)

    def last_layers(self) -> Iterable[nn.Module]:
        """None: it begins as a rule that serves."""
        return ()


@njit(cache=True)
def ladder_inputs(cluster: FloatArray, engines: FloatArray) -> NDArray[np.float64]:
    """(INPUTS,), what thresholds depend on.

    Args:
        cluster: (figures,), of the observation; those of classes, however many, come last.
        engines: (base engines, figures), of the observation.
    """
    in_flight = _REQUESTS_SCALE * np.expm1(cluster[_NUM_IN_FLIGHT])
    now = _REQUEST_RATE_SCALE * np.expm1(cluster[_RATE_NOW])
    short = _REQUEST_RATE_SCALE * np.expm1(cluster[_RATE_SHORT])
    long = _REQUEST_RATE_SCALE * np.expm1(cluster[_RATE_LONG])
    every, largest, ttft_misses, tpot_misses = 0.0, 0.0, 0.0, 0.0
    for first in range(_NUM_CLUSTER, len(cluster), _NUM_CLASS):
        rate = np.expm1(cluster[first + _CLASS_RATE])
        every += rate
        largest = max(largest, rate)
        ttft_misses = max(ttft_misses, cluster[first + _TTFT_MISSES])
        tpot_misses = max(tpot_misses, cluster[first + _TPOT_MISSES])
    return np.array(
        [
            1.0,
            np.log((in_flight + 1.0) / _IN_FLIGHT),
            np.log((now + 1.0) / (short + 1.0)),
            np.log((short + 1.0) / _RATE),
            np.log((long + 1.0) / _RATE),
            _log_prompt(cluster[_TOKENS_SHORT], short),
            _log_prompt(cluster[_TOKENS_LONG], long),
            engines[:, _KV_USAGE].max(),
            engines[:, _BACKLOG].max(),
            ttft_misses,
            tpot_misses,
            in_flight / max(in_flight + long, _LESS),
            engines[:, _CONTEXT].max(),
            (every - largest) / max(every, _LESS),
        ]
    )


@njit(cache=True)
def _log_prompt(tokens: float, rate: float) -> float:
    """Log of the mean prompt over a thousand tokens, from its figure in the observation and a rate of requests."""
    tokens = _TOKEN_RATE_SCALE * np.expm1(tokens) + _FEWEST
    return float(np.log(tokens / (rate + _FEWEST / _PROMPT) / _PROMPT))


@njit(cache=True)
def _score(
    inputs: NDArray[np.float64],
    engines: FloatArray,
    weights: FloatArray,
    bands: FloatArray,
    ranks: FloatArray,
    rungs: FloatArray,
    scores: FloatArray,
) -> None:
    """Writes down the scores of actions: layouts, and the ways to get there."""
    most = len(bands)
    present = np.empty(len(engines))
    for base in range(len(engines)):
        present[base] = np.round(engines[base, _WIDTH] * most)
    rung = np.round(most - present.mean())
    begun = inputs[_BEGUN] > np.log(1.0 / _RATE)  # before any request came no band counts
    wanted = 0
    for i in range(most):
        total = np.abs(bands[i]) if begun and i < rung else 0.0
        for j in range(len(inputs)):
            total += inputs[j] * weights[i, j]
        wanted += total > 0.0
    for layout in range(len(ranks)):
        merges, same = False, True
        for base in range(len(present)):
            merges |= ranks[layout, base] > present[base]
            same &= ranks[layout, base] == present[base]
        off = np.abs(rungs[layout] - wanted)
        if same and off > 0.0:
            off = _STAY
        order = _ORDER_STAY if same else _ORDER_MERGE if merges else _ORDER_SPLIT
        for mode in range(NUM_MODES):
            scores[layout * NUM_MODES + mode, 0] = -off - _LESS * order[mode]


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


def _order(*modes: SwitchMode) -> tuple[float, ...]:
    """(modes,), place of each in an order."""
    return tuple(float(modes.index(mode)) for mode in sorted(modes))


_ORDER_MERGE = _order(*MERGING)
_ORDER_SPLIT = _order(*SPLITTING)
_ORDER_STAY = _order(*STAYING)
