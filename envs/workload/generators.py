"""Workloads drawn from a model: the interface of a generator, and the one fitted to real traces."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtr

from serving_gym.envs.workload.schema import FloatArray, TokenArray, Workload

FITTED_DIR = Path(__file__).parent / "fitted"
_NEGLIGIBLE = 1e-18
_LARGEST_FITTED_BYTES = 50_000_000
_TABLES = ("probabilities", "interarrival_s", "input_tokens", "output_tokens")


class Generator(Protocol):
    """Source of workloads of any length."""

    @property
    def name(self) -> str:
        """Name of its workloads."""
        ...

    @property
    def num_requests(self) -> int:
        """Default length of an episode, requests."""
        ...

    @property
    def rate_rps(self) -> float:
        """Long-run mean arrival rate, requests per second."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Request classes of its workloads."""
        ...

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt it can draw, tokens."""
        ...

    @property
    def max_output_tokens(self) -> int:
        """Longest output it can draw, tokens; the cap that every request declares."""
        ...

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload; a longer one drawn from the same stream begins with the shorter one."""
        ...


@dataclass(frozen=True)
class MemoryComponent:
    """One time scale of the memory of the arrival process.

    Attributes:
        time_scale_requests: number of requests over which the correlation falls to 1/e.
        weight: share of the variance it explains, 0 to 1.
    """

    time_scale_requests: float
    weight: float


@dataclass(frozen=True)
class FittedWorkload:
    """Generator fitted to a trace: three marginals, the memory of the arrivals, one correlation of lengths.

    Arrivals: interarrival times are ``Q(Phi(z_i))``, where ``Q`` is the trace's quantile function and ``z`` a
        standard
    Gaussian sequence, the sum of first-order autoregressive components on several time scales and white noise
    (NORTA, Cario and Nelson 1997, with the memory indexed by request). The marginal carries short bursts and
    silences, the components carry the drift of the rate. Lengths: quantile functions of input and output
    joined by a Gaussian copula, independent from request to request and of the arrivals.

    What it does not carry: shared prefixes (no ``hash_ids``), sessions, daily cycles, correlation between the
    lengths of neighbouring requests, and the exact spikes of lengths that a service's own limits produce.

    Attributes:
        name: name of its workloads.
        rate_rps: the trace's mean arrival rate, requests per second.
        probabilities: (K,), the levels of the three quantile tables, from 0 to 1.
        interarrival_s: (K,), seconds; the top 1 % is scaled so that linear interpolation keeps the trace's
            mean.
        input_tokens: (K,), tokens.
        output_tokens: (K,), tokens.
        memory: components of the arrival process; their weights sum to at most 1, the rest is white.
        length_correlation: correlation of the Gaussian copula between input and output.
        num_requests: default length of an episode, requests.
        provenance: publisher, licence, rows, dates and digest of the trace, and how it was fitted.
        fit: measured distances between generated workloads and the trace.
    """

    name: str
    rate_rps: float
    probabilities: tuple[float, ...]
    interarrival_s: tuple[float, ...]
    input_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]
    memory: tuple[MemoryComponent, ...]
    length_correlation: float
    num_requests: int = 4000
    provenance: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, float] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        """One class."""
        return ("standard",)

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt in tokens."""
        return int(self.input_tokens[-1])

    @property
    def max_output_tokens(self) -> int:
        """Longest output in tokens."""
        return int(self.output_tokens[-1])

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload whose first request arrives at 0 and whose process is in its steady state."""
        arrivals, first, second = rng.spawn(3)
        gaps = self._lookup(self.interarrival_s, ndtr(self._memory_noise(num_requests, arrivals)))
        input_tokens, output_tokens = self.lengths(num_requests, first, second)
        arrival_s = np.cumsum(gaps)
        return Workload(
            arrival_s=arrival_s - arrival_s[0],
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            max_output_tokens=np.full(num_requests, self.max_output_tokens, dtype=np.int32),
            name=self.name,
            provenance=f"generated; fitted to {self.provenance.get('trace', 'a trace')}",
        )

    def lengths(
        self, num_requests: int, first: np.random.Generator, second: np.random.Generator
    ) -> tuple[TokenArray, TokenArray]:
        """Draws prompt and output lengths, (num_requests,) tokens each; more of them begin with the fewer."""
        noise_in, noise_out = first.standard_normal(num_requests), second.standard_normal(num_requests)
        r = self.length_correlation
        noise_out = r * noise_in + np.sqrt(1.0 - r * r) * noise_out
        return self._tokens(self.input_tokens, noise_in), self._tokens(self.output_tokens, noise_out)

    def save(self, path: Path) -> None:
        """Writes the generator as JSON, one table a line."""
        text = json.dumps(asdict(self), indent=1)
        text = re.sub(r"\[([^\[\]{}]+)\]", lambda table: f"[{' '.join(table[1].split())}]", text)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> FittedWorkload:
        """Reads what :meth:`save` wrote.

        Raises:
            ValueError: no such file, or not a fitted generator.
        """
        if not path.is_file():
            raise ValueError(f"fitted generator {path} does not exist")
        try:
            values: Any = json.loads(path.read_text(encoding="utf-8-sig"))
            if isinstance(values, list):
                raise ValueError(
                    f"{path} is a list, as files of conversations are: make a workload of them with "
                    f"'python -m runners.traces convert path={path} out=FILE.parquet'"
                )
            values |= {table: tuple(values[table]) for table in _TABLES}
            values["memory"] = tuple(MemoryComponent(**component) for component in values["memory"])
            return cls(**values)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a fitted generator: {error}") from error

    def _memory_noise(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Standard Gaussian sequence (n,) with the fitted autocorrelation."""
        streams = rng.spawn(len(self.memory) + 1)
        white = 1.0 - sum(component.weight for component in self.memory)
        total = np.sqrt(max(white, 0.0)) * streams[-1].standard_normal(n)
        for component, own in zip(self.memory, streams, strict=False):
            decay = np.exp(-1.0 / component.time_scale_requests)
            shocks = own.standard_normal(n)
            shocks[1:] *= np.sqrt(1.0 - decay * decay)
            total += np.sqrt(component.weight) * autoregress(shocks, decay)
        noise: FloatArray = total
        return noise

    def _tokens(self, table: tuple[float, ...], noise: FloatArray) -> TokenArray:
        return np.maximum(np.rint(self._lookup(table, ndtr(noise))), 1).astype(np.int32)

    def _lookup(self, table: tuple[float, ...], probability: FloatArray) -> FloatArray:
        return np.interp(probability, self.probabilities, table)


def autoregress(shocks: FloatArray, decay: float) -> FloatArray:
    """First-order autoregression ``x[t] = decay * x[t - 1] + shocks[t]``, (n,).

    By doubling: after k rounds every entry holds its last 2^k shocks. (The filter of ``scipy.signal`` does the
    same, but its import takes longer than all others of this package together.)
    """
    state, reach, weight = shocks, 1, decay
    while reach < shocks.size and weight > _NEGLIGIBLE:
        earlier = weight * state[:-reach]
        state = state.copy()
        state[reach:] += earlier
        reach, weight = 2 * reach, weight * weight
    return state


@lru_cache(maxsize=16)
def is_fitted(path: Path) -> bool:
    """Whether a file is one of a fitted generator, as its name and the beginning of its content say."""
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > _LARGEST_FITTED_BYTES:
        return False
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return text.lstrip().startswith("{") and '"memory"' in text


def load_fitted(name: str) -> FittedWorkload:
    """Generator that ships with the package, by name (``azure_conv_fitted``)."""
    return FittedWorkload.load(FITTED_DIR / f"{name}.json")


def fitted_names() -> tuple[str, ...]:
    """Names of the fitted generators that ship with the package."""
    return tuple(sorted(path.stem for path in FITTED_DIR.glob("*.json")))


AZURE_LENGTHS = ("azure_code_fitted", "azure_conv_fitted")


class AzureLengths:
    """Base of traffic whose requests have the lengths of Azure's coding and chat services of 2023."""

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt in tokens."""
        return max(load_fitted(name).max_input_tokens for name in AZURE_LENGTHS)

    @property
    def max_output_tokens(self) -> int:
        """Longest output in tokens."""
        return max(load_fitted(name).max_output_tokens for name in AZURE_LENGTHS)
