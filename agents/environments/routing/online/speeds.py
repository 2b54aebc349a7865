"""How fast each engine is, by regressions that forget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.routing.online.ledger import News, Windows
from serving_gym.envs.interface.nominal import NominalEngines

Floats = NDArray[np.float64]

# Where nothing is known: seconds of an iteration, and of it for a sequence, a token of context and one of a prompt;
# only their proportions count, until the first windows have closed.
GUESS_S = np.array([1e-2, 1e-4, 1e-7, 5e-5])
_LEAST_SHARE = 0.05  # of what was expected beforehand; no coefficient is smaller
_FRONT_S = 5e-3  # scale of the time to a first token that is not the engine's, seconds
_FIRST_S = 2e-2  # added to an expected TTFT where errors are measured relative to it, seconds
_KEPT = 0.02  # of what was learned of an engine that has changed
_LOST = 10.0  # TTFT over what was expected from which it is not learned from


@dataclass(frozen=True)
class Doubt:
    """Standard deviations, relative to what is expected beforehand.

    Attributes:
        all: Of a factor on all coefficients of an engine.
        each: Of each coefficient by itself.
        noise: Of an observation.
    """

    all: float
    each: float
    noise: float


OF_PROFILE = Doubt(
    all=1.0, each=0.1, noise=0.1
)  # profiles are often wrong as a whole, seldom in their proportions
OF_OTHERS = Doubt(all=2.0, each=0.3, noise=0.1)  # an engine, by all of them together
OF_GUESS = Doubt(all=2.0, each=1.0, noise=0.1)
OF_FIRST = Doubt(all=0.0, each=1.0, noise=0.3)


class Regressions:
    """A linear regression for each of P engines, discounted: y = x . theta, with a Gaussian belief beforehand.

    With gram = sum of w x x', moment = sum of w x y and w = discount / noise^2 the estimate is
    (gram + S^-1)^-1 (moment + S^-1 m), where m is expected beforehand and S = all^2 m m' + each^2 diag(m^2). The sums
    are discounted and the belief is not, so what is no longer observed returns to m.

    Args:
        number: P.
        width: Coefficients, D.
    """

    def __init__(self, number: int, width: int) -> None:
        self.gram = np.zeros((number, width, width))
        self.moment = np.zeros((number, width))

    def discount(self, factor: Floats | float) -> None:
        """Forgets: each engine's sums times a factor."""
        factors = np.broadcast_to(factor, len(self.gram))
        self.gram *= factors[:, None, None]
        self.moment *= factors[:, None]

    def add(self, places: NDArray[np.int64], x: Floats, y: Floats, noise: float) -> None:
        """Observations: (N,) engines, (N, D) and (N,)."""
        np.add.at(self.gram, places, x[:, :, None] * x[:, None, :] / noise**2)
        np.add.at(self.moment, places, x * y[:, None] / noise**2)

    def estimate(self, mean: Floats, doubt: Doubt) -> Floats:
        """(P, D).

        Args:
            mean: (D,), expected beforehand; positive.
            doubt: About it.
        """
        return estimate(self.gram, self.moment, mean, doubt)


def estimate(gram: Floats, moment: Floats, mean: Floats, doubt: Doubt) -> Floats:
    """(..., D), see `Regressions`; no coefficient is below a share of what was expected."""
    spread = doubt.all**2 * np.outer(mean, mean) + doubt.each**2 * np.diag(mean**2)
    precision = np.linalg.inv(spread)
    target = (moment + precision @ mean)[..., None]
    solved = np.linalg.solve(gram + precision, target)[..., 0]
    return np.asarray(np.maximum(solved, _LEAST_SHARE * mean), np.float64)


class EngineSpeeds:
    """What each engine takes for an iteration and for prompts, in the form of `NominalEngines`, learned by windows.

    A window (`Windows`) lasts as long as its iterations: elapsed = iterations x base + sequences x sequence + context x
    kv + prefilled x prompt. From nothing these four are the coefficients, expected beforehand as all engines together
    have them. From a profile there are two: factors on its decode iterations and on its prompts, 1 beforehand.

    Args:
        engines: The places; their speeds count where `from_profile`, else only their limits.
        from_profile: Whether the profile is believed beforehand.
        memory_s: Time constant of forgetting, seconds.
        drift: Mean relative error of the last windows above which most of what was learned of an engine is forgotten.

    Attributes:
        decode_s: (P, S + 1), as in `NominalEngines`.
        kv_s_per_token: (P,).
        prefill_s_per_token: (P,).
        evidence: (P,) windows of each engine, discounted.
        closed: Windows so far, of all engines.
    """

    def __init__(self, engines: NominalEngines, from_profile: bool, memory_s: float, drift: float) -> None:
        self._engines, self._from_profile = engines, from_profile
        self._memory_s, self._drift = memory_s, drift
        number = len(engines)
        self._budget = np.maximum(engines.max_num_batched_tokens, 1)
        self._marginal = np.maximum(  # of a prompt token, beside a decode iteration
            engines.prefill_s_per_token - engines.decode_s[:, 1] / self._budget,
            0.2 * engines.prefill_s_per_token,
        )
        self._speeds = Regressions(number, 2 if from_profile else len(GUESS_S))
        self._first = Regressions(number, 2)
        self._first_of = np.ones((number, 2))
        self._errors = np.array([1.0, 0.1])  # weight, and squares of relative errors of TTFT
        self._off = np.zeros(number)
        self.evidence = np.zeros(number)
        self.closed = 0
        self._theta = np.ones((number, self._speeds.moment.shape[1]))
        self._spell_out()

    @property
    def spread(self) -> float:
        """Standard deviation of TTFT around what is expected, relative."""
        weight, squares = self._errors
        return math.sqrt(squares / weight)

    def first_token_s(self, expected_s: Floats) -> Floats:
        """(P,) TTFT by what first tokens have taken, of what the speeds make of it, seconds."""
        front, factor = self._first_of.T
        return front * _FRONT_S + factor * expected_s

    def learn_first(self, news: News) -> None:
        """Takes in first tokens."""
        places, expected_s, ttft_s = news
        if not len(places):
            return
        scale = expected_s + _FIRST_S
        x = np.stack((np.full(len(places), _FRONT_S), expected_s), axis=1) / scale[:, None]
        y = ttft_s / scale
        error = np.clip(y - (self._first_of[places] * x).sum(axis=1), -3.0, 3.0)
        self._errors += [len(places), float((error**2).sum())]
        usual = y < _LOST  # a request that was lost on its way says nothing of the others
        self._first.add(places[usual], x[usual], y[usual], OF_FIRST.noise)

    def learn(self, windows: Windows) -> None:
        """Takes in a window of each engine that decoded throughout."""
        factor = math.exp(-windows.elapsed_s / self._memory_s)
        self._errors *= factor
        self.evidence *= factor
        self._speeds.discount(factor)
        self._first.discount(factor)
        places = np.flatnonzero(windows.valid)
        if len(places):
            x = self._features(windows)[places] / windows.elapsed_s
            self._forget_what_is_off(places, 1.0 - (x * self._theta[places]).sum(axis=1))
            self._speeds.add(places, x, np.ones(len(places)), OF_OTHERS.noise)
            self.evidence[places] += 1.0
            self.closed += len(places)
        self._theta = self._estimated()
        self._first_of = self._first.estimate(np.ones(2), OF_FIRST)
        self._spell_out()

    def _forget_what_is_off(self, places: NDArray[np.intp], error: Floats) -> None:
        """Where an engine's last windows err to one side, it has changed."""
        if not self.closed:
            return
        self._off[places] = 0.5 * self._off[places] + 0.5 * error
        changed = np.abs(self._off) > self._drift
        factor = np.where(changed, _KEPT, 1.0)
        self._speeds.discount(factor)
        self._first.discount(factor)
        self._off[changed] = 0.0

    def _features(self, windows: Windows) -> Floats:
        """(P, D) seconds that the coefficients are factors on."""
        if not self._from_profile:
            columns = (windows.iterations, windows.sequences, windows.context, windows.prefilled)
            return np.stack(columns, axis=1) * GUESS_S
        engines = self._engines
        batch = windows.sequences / np.maximum(windows.iterations, 1.0)
        batch = np.minimum(batch, engines.decode_s.shape[1] - 1)
        low = batch.astype(np.int64)
        rows = np.arange(len(engines))
        below, above = engines.decode_s[rows, low], engines.decode_s[rows, np.ceil(batch).astype(np.int64)]
        iteration_s = below + (batch - low) * (above - below)
        decode_s = windows.iterations * iteration_s + engines.kv_s_per_token * windows.context
        return np.stack((decode_s, windows.prefilled * self._marginal), axis=1)

    def _estimated(self) -> Floats:
        if self._from_profile:
            return self._speeds.estimate(np.ones(2), OF_PROFILE)
        gram, moment = self._speeds.gram.sum(axis=0), self._speeds.moment.sum(axis=0)
        if not gram.sum() > 0:
            return self._theta
        scale = moment.sum() / gram.sum()  # of all coefficients together
        mean = estimate(gram, moment, np.full(len(GUESS_S), scale), OF_GUESS)
        return self._speeds.estimate(mean, OF_OTHERS)

    def _spell_out(self) -> None:
        """Writes the speeds as `NominalEngines` has them."""
        engines, theta = self._engines, self._theta
        if self._from_profile:
            self.decode_s = engines.decode_s * theta[:, :1]
            self.kv_s_per_token = engines.kv_s_per_token * theta[:, 0]
            prompt_s = self._marginal * theta[:, 1]
        else:
            base_s, sequence_s, self.kv_s_per_token, prompt_s = np.ascontiguousarray((theta * GUESS_S).T)
            self.decode_s = base_s[:, None] + sequence_s[:, None] * np.arange(engines.decode_s.shape[1])
        self.prefill_s_per_token = prompt_s + self.decode_s[:, 1] / self._budget
