"""The goodput model: how fast an instance would serve a request (source of its form: ours).

An engine's time goes into iterations, the requests in them, the context that they read and prompt tokens. What each
costs is learned for every kind of engine by non-negative least squares from the work and the busy time that engines
report between two polls, relative to the busy time. History begins with the calibrated profile, which counts as
some observations of each cost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from serving_gym.envs.interface.nominal import NominalEngines

# Columns of costs: seconds per iteration, per request in one, per token of context in one, per prompt token.
NUM_COSTS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What P instances have to do, by the router's own requests in flight.

    Attributes:
        requests: (P,) requests in flight.
        context_tokens: (P,) their prompts and tokens generated so far.
        queued_tokens: (P,) prompt tokens of those without a first token.
    """

    requests: NDArray[np.int64]
    context_tokens: NDArray[np.float64]
    queued_tokens: NDArray[np.float64]


def nominal_costs(fleet: NominalEngines) -> NDArray[np.float64]:
    """Costs by the calibrated profile, (P, NUM_COSTS): the line through iterations of one request and of the most."""
    most = fleet.decode_s.shape[1] - 1
    alone_s = fleet.decode_s[:, 1]
    per_request_s = np.maximum(fleet.decode_s[:, most] - alone_s, 0.0) / max(most - 1, 1)
    per_iteration_s = np.maximum(alone_s - per_request_s, 0.0)
    return np.column_stack([per_iteration_s, per_request_s, fleet.kv_s_per_token, fleet.prefill_s_per_token])


class GoodputModel:
    """Costs of every kind of engine, learned while they serve.

    Args:
        fleet: The engines.
        sample_s: Least time between the polls that make an observation, seconds.
        window: Observations of a kind that are remembered, the latest.
        prior_weight: Observations that the calibrated profile counts for.
    """

    def __init__(self, fleet: NominalEngines, sample_s: float, window: int, prior_weight: float) -> None:
        kinds = list(zip(fleet.models, fleet.gpus, fleet.num_gpus.tolist(), strict=True))
        self._kinds = np.array([kinds.index(kind) for kind in kinds], np.int64)
        self._nominal = nominal_costs(fleet)
        self._sample_s, self._prior_weight = sample_s, prior_weight
        self._seen: dict[int, deque[NDArray[np.float64]]] = {
            kind: deque(maxlen=window) for kind in set(self._kinds.tolist())
        }
        self._polled_s = -np.inf
        self._polled: NDArray[np.void] | None = None
        self.costs = self._nominal.copy()  # (P, NUM_COSTS)

    def observe(self, gauges_s: float, engines: NDArray[np.void]) -> None:
        """Learns from a poll, if it is far enough from the one before.

        Args:
            gauges_s: When it was.
            engines: (P,) ENGINE_STATE_DTYPE.
        """
        if gauges_s < self._polled_s + self._sample_s:
            return
        before, self._polled, self._polled_s = self._polled, engines.copy(), gauges_s
        if before is None:
            return
        work, busy_s = work_between(before, engines)
        usable = (
            (busy_s > 0.0) & (work[:, 1] > 0.0) & np.isfinite(work).all(axis=1) & (work >= 0.0).all(axis=1)
        )
        for place in np.flatnonzero(usable):
            self._seen[int(self._kinds[place])].append(work[place] / busy_s[place])
        for kind in np.unique(self._kinds[usable]):
            self.costs[self._kinds == kind] = self._fit(int(kind))

    def _fit(self, kind: int) -> NDArray[np.float64]:
        """Costs that explain the observations of a kind, in units of the profile's: these are what it starts from."""
        nominal = self._nominal[kind]
        seen = np.array(self._seen[kind]) * nominal
        prior = np.sqrt(self._prior_weight) * np.eye(NUM_COSTS)
        factors, _ = nnls(np.vstack([seen, prior]), np.concatenate([np.ones(len(seen)), prior.sum(axis=1)]))
        return np.asarray(factors * nominal, np.float64)

    def goodput(
        self, load: Load, prompt: float, response: float, ahead: int, ahead_tokens: float
    ) -> NDArray[np.float64]:
        """Tokens per second at which each instance would answer a request, from now until its last token, (P,).

        The load stays as it is: the model has no foresight, as PreServe says of it.

        Args:
            load: What the instances have to do.
            prompt: Tokens of the request's prompt.
            response: Its predicted response, tokens.
            ahead: Further requests that go there before it.
            ahead_tokens: Prompt tokens of each of these.
        """
        per_iteration, per_request, per_context, per_prompt = self.costs.T
        prefill_s = per_prompt * (load.queued_tokens + ahead * ahead_tokens + prompt)
        iteration_s = (
            per_iteration
            + per_request * (load.requests + ahead + 1)
            + per_context * (load.context_tokens + ahead * ahead_tokens + prompt)
        )
        speed: NDArray[np.float64] = response / np.maximum(prefill_s + response * iteration_s, 1e-12)
        return speed


def work_between(
    before: NDArray[np.void], after: NDArray[np.void]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What engines did between two polls, (P, NUM_COSTS), and how long they were busy, seconds, (P,).

    Batch and context are the means of both polls; an engine generates one token a decoding request each iteration.
    Where the batch was empty at both, the number of iterations is not known: not a number.
    """
    generated = (after["generated_tokens"] - before["generated_tokens"]).astype(np.float64)
    prefilled = (after["prefilled_tokens"] - before["prefilled_tokens"]).astype(np.float64)
    running = before["num_running"] + after["num_running"]
    decoding = (running - before["num_prefilling"] - after["num_prefilling"]) / 2.0
    context = (before["context_tokens"] + after["context_tokens"]) / 2.0
    iterations = np.divide(generated, decoding, out=np.full(len(after), np.nan), where=decoding > 0)
    work = np.column_stack([iterations, generated, iterations * context, prefilled])
    return work, after["busy_s"] - before["busy_s"]
