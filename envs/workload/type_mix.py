"""Workload whose mix of types changes over minutes, after OServe's evaluation (Jiang et al., 2026, sections 2 and 6).

The traces of the paper are windows of Azure's week of 2024, whose requests are not at hand here. Lengths are drawn from
the generators that are fitted to Azure's two services of 2023, cut at the medians of input and of output into the four
types of Table 1: short or long input, short or long output. The mix is held for a while, then goes over to the next;
the mixes of Table 1 are the defaults, as Table 2 strings them together. Arrivals are Poisson with a rate that is
constant within a minute, of a mix at most.

Beside the mixes of Table 1 there are three of ours: `generation`, in which nearly all answers are long, so that KV
memory is what runs short, `reading`, in which nearly all prompts are, so that arithmetic is, and `alike`, of one type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.workload.generators import AZURE_LENGTHS, AzureLengths, load_fitted
from serving_gym.envs.workload.schema import FloatArray, TokenArray, Workload
from serving_gym.envs.workload.seeding import stream

TYPE_NAMES = ("SILO", "LILO", "SISO", "LISO")  # in the order of Table 1
TABLE_1 = {  # shares of the types, %
    "S1": (26.3, 26.2, 27.3, 20.2),
    "S2": (30.0, 28.0, 24.2, 17.8),
    "S3": (18.8, 18.9, 35.5, 26.8),
    "S4": (13.2, 14.2, 41.1, 31.5),
    "S5": (8.2, 8.2, 47.1, 36.6),
}
OURS = {  # likewise, %; source: ours
    "generation": (60.0, 25.0, 12.0, 3.0),
    "reading": (4.0, 6.0, 25.0, 65.0),
    "alike": (0.0, 0.0, 100.0, 0.0),
}
MIXES = TABLE_1 | OURS
_POOL = 20_000
_MINUTE_S = 60.0


@dataclass(frozen=True)
class TypeMix(AzureLengths):
    """Poisson arrivals of four types whose shares change.

    Attributes:
        mean_rps: mean rate, requests per second.
        mixes: mixes one after another, over and over, each by its name in `MIXES`.
        rates: rate of each mix relative to the others; none: all are alike.
        hold_s: how long each lasts, seconds. Source: section 6.3, "the minimum switching interval is 5 minutes".
        gradual: whether mix and rate drift, on straight lines, from each mix to the next, as Figure 9 shows it of real
            traces; else they change at once. None: the one or the other, drawn for each episode, to train for both.
        rate_noise: standard deviation of the log rate from minute to minute; source: as fitted in `tiers.py`.
        mix_noise: standard deviation of the log share of each type from minute to minute; source: ours.
        code_share: share of requests from which types are cut with the lengths of Azure's coding service.
        long_answer_factor: factor on the answers of the types with long ones. Those of Azure's services of 2023 end at
            1000 to 2000 tokens, those of the paper's traces (section 5.1) at 5000. Source: ours.
        longest_tokens: longest request, prompt and answer, tokens: longer ones are left out before types are cut, and
            no answer is declared longer; none: all are kept. For a model whose context is shorter than the requests.
        random_start: whether an episode begins anywhere in the sequence of mixes, else with the first.
        num_requests: default length of an episode, requests.
    """

    mean_rps: float = 10.0
    mixes: tuple[str, ...] = ("S1", "S4", "S5")
    rates: tuple[float, ...] = ()
    hold_s: float = 300.0
    gradual: bool | None = False
    rate_noise: float = 0.092
    mix_noise: float = 0.1
    code_share: float = 0.313
    long_answer_factor: float = 1.0
    longest_tokens: int | None = None
    random_start: bool = True
    num_requests: int = 4000

    name = "type_mix"

    def __post_init__(self) -> None:
        check_positive(self, "mean_rps", "hold_s", "long_answer_factor", finite=True)
        check_not_negative(self, "rate_noise", "mix_noise", finite=True)
        if self.gradual is not None and not isinstance(self.gradual, bool):
            raise ValueError(f"gradual must be true or false, or null for either, got {self.gradual!r}")
        if not isinstance(self.random_start, bool):
            raise ValueError(f"random_start must be true or false, got {self.random_start!r}")
        check_within(self, "(0, 1)", "code_share")
        unknown = [mix for mix in self.mixes if mix not in MIXES]
        if unknown or not self.mixes:
            raise ValueError(f"mixes must name at least one of {', '.join(MIXES)}, got {list(self.mixes)}")
        if self.rates and len(self.rates) != len(self.mixes):
            raise ValueError(
                f"rates must have one for each of {len(self.mixes)} mixes or none, got {list(self.rates)}"
            )
        if not all(0 < rate < np.inf for rate in self.rates):
            raise ValueError(f"rates must be positive numbers, got {list(self.rates)}")
        check_at_least(self, 1, "num_requests")
        check_at_least(self, 64, "longest_tokens")

    @property
    def classes(self) -> tuple[str, ...]:
        """One class; types differ in their lengths."""
        return ("standard",)

    @property
    def rate_rps(self) -> float:
        """Mean rate, requests per second."""
        return self.mean_rps

    @property
    def max_output_tokens(self) -> int:
        """Longest output in tokens."""
        return round(super().max_output_tokens * max(1.0, self.long_answer_factor))

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload."""
        arrival_s, labels = self.labelled_arrivals(num_requests, rng)
        input_tokens, output_tokens = self._lengths(labels, rng.spawn(1)[0])
        return Workload(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            max_output_tokens=self._declared(input_tokens),
            name=self.name,
            provenance="generated; OServe, Table 1, lengths from generators fitted to Azure's traces of 2023",
        )

    def _declared(self, input_tokens: TokenArray) -> TokenArray:
        """(n,), longest answer that each request may have, tokens."""
        most = np.full(len(input_tokens), self.max_output_tokens, np.int32)
        return most if self.longest_tokens is None else np.minimum(most, self.longest_tokens - input_tokens)

    def labelled_arrivals(self, num_requests: int, rng: np.random.Generator) -> tuple[FloatArray, TokenArray]:
        """When requests arrive, seconds, and the type of each, row of `TYPE_NAMES`; (num_requests,) both."""
        if self.gradual is None:
            drawn = replace(self, gradual=bool(rng.spawn(1)[0].random() < 0.5))
            return drawn.labelled_arrivals(num_requests, rng)
        begin, arrivals, minutes, mixing, which = rng.spawn(5)
        start_s = float(begin.uniform(0, self.hold_s * len(self.mixes))) if self.random_start else 0.0
        arrival_s = self._arrivals(num_requests, start_s, arrivals, minutes)
        return arrival_s, self._labels(arrival_s, start_s, mixing, which)

    def _arrivals(
        self, n: int, start_s: float, arrivals: np.random.Generator, minutes: np.random.Generator
    ) -> FloatArray:
        """(n,), seconds."""
        expected = np.cumsum(arrivals.standard_exponential(n))
        logs = np.zeros(0)
        while True:
            logs = np.concatenate([logs, minutes.standard_normal(1024)])
            edges = self._edges(len(logs) * _MINUTE_S, start_s)
            minute = (edges[:-1] // _MINUTE_S).astype(np.int64)
            noise = np.exp(self.rate_noise * logs[minute] - self.rate_noise**2 / 2)
            relative = np.array(self.rates or (1.0,) * len(self.mixes))
            middle = (edges[:-1] + edges[1:]) / 2
            rate = self.mean_rps * noise * self._at(middle + start_s, relative / relative.mean())
            cumulative = np.concatenate([[0.0], np.cumsum(rate * np.diff(edges))])
            if cumulative[-1] > expected[-1]:
                return np.interp(expected, cumulative, edges)

    def _edges(self, until_s: float, start_s: float) -> FloatArray:
        """Times between which the rate is constant, seconds."""
        minutes = np.arange(0.0, until_s + _MINUTE_S / 2, _MINUTE_S)
        if not self.rates:
            return minutes
        changes = np.arange(self.hold_s, until_s + start_s, self.hold_s) - start_s
        return np.union1d(minutes, changes[(changes > 0) & (changes < until_s)])

    def _at(self, times_s: FloatArray, of_mixes: FloatArray) -> FloatArray:
        """(n, ...), what a quantity of each mix, (len(mixes), ...), is at times in the sequence of mixes, (n,)."""
        phase, count = times_s / self.hold_s, len(self.mixes)
        first = np.floor(phase).astype(np.int64)
        before = of_mixes[first % count]
        if not self.gradual:
            return before
        way = (phase - first).reshape(-1, *(1,) * (of_mixes.ndim - 1))
        return before + way * (of_mixes[(first + 1) % count] - before)

    def _labels(
        self, arrival_s: FloatArray, start_s: float, mixing: np.random.Generator, which: np.random.Generator
    ) -> TokenArray:
        """(n,), type of each request."""
        minute = (arrival_s // _MINUTE_S).astype(np.int64)
        noise = np.exp(self.mix_noise * mixing.standard_normal((int(minute[-1]) + 1, len(TYPE_NAMES))))
        shares = self._at(arrival_s + start_s, np.array([MIXES[mix] for mix in self.mixes])) * noise[minute]
        edges = np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True)
        return (which.random(len(arrival_s))[:, None] >= edges[:, :-1]).sum(axis=1).astype(np.int32)

    def _lengths(self, labels: TokenArray, rng: np.random.Generator) -> tuple[TokenArray, TokenArray]:
        """Prompt and output lengths of requests of given types, (n,) tokens each."""
        pools = length_pools(self.code_share, self.long_answer_factor, self.longest_tokens)
        place = rng.random(len(labels))
        inputs, outputs = np.empty(len(labels), np.int32), np.empty(len(labels), np.int32)
        for j, (prompts, answers) in enumerate(pools):
            rows = labels == j
            drawn = (place[rows] * len(prompts)).astype(np.int64)
            inputs[rows], outputs[rows] = prompts[drawn], answers[drawn]
        return inputs, outputs


@lru_cache(maxsize=16)
def length_pools(
    code_share: float, long_answer_factor: float = 1.0, longest_tokens: int | None = None
) -> Sequence[tuple[TokenArray, TokenArray]]:
    """Lengths of each type, in the order of `TYPE_NAMES`: quadrants about the medians of input and output.

    Args:
        code_share: share of requests of Azure's coding service.
        long_answer_factor: factor on the answers of the types with long ones.
        longest_tokens: of prompt and answer together, beyond which a request is left out; none: all are kept.
    """
    rng = stream(0, "type_mix", "pool")
    parts = [
        load_fitted(name).lengths(round(_POOL * share), *rng.spawn(2))
        for name, share in zip(AZURE_LENGTHS, (code_share, 1 - code_share), strict=True)
    ]
    inputs, outputs = (np.concatenate([part[i] for part in parts]) for i in range(2))
    longer = np.rint(outputs * long_answer_factor).astype(outputs.dtype)
    outputs = np.where(outputs > np.median(outputs), longer, outputs)
    if longest_tokens is not None:
        fits = inputs + outputs <= longest_tokens
        inputs, outputs = inputs[fits], outputs[fits]
    long_in, long_out = inputs > np.median(inputs), outputs > np.median(outputs)
    quadrants = ((~long_in) & long_out, long_in & long_out, (~long_in) & ~long_out, long_in & ~long_out)
    return tuple((inputs[rows], outputs[rows]) for rows in quadrants)
