"""Adds the front end to a simulated episode: the simulator's requests begin and end at the engine.

Every profile has a front end (`calibration.engines.Frontend`): HTTP, validation, queues between processes. It
shifts a request's first and last token alike, so that it can be added when the episode is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from serving_gym.calibration.engines import Frontend
from serving_gym.envs.interface.metrics import RequestRecords, summarise
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.runners.rollouts.rollout import Episode
from serving_gym.runners.validation.predict import with_frontend


def as_clients_see_it(
    episode: Episode, front_ends: Sequence[Frontend], spec: PolicySpec, objective: Objective
) -> Episode:
    """The episode with latencies at the client, including each engine's front end.

    Args:
        episode: As simulated.
        front_ends: (P,), by place.
        spec: The setting.
        objective: What the return adds up.
    """
    records, slos = shifted(episode.records, front_ends), dict(zip(spec.classes, spec.slos, strict=True))
    gain = _return_of(records, spec, objective) - _return_of(episode.records, spec, objective)
    figures = summarise(records, slos, spec.classes, episode.duration_s)
    metrics = episode.metrics | figures | {"return": episode.metrics["return"] + gain}
    return replace(episode, metrics=metrics, records=records)


def shifted(records: RequestRecords, front_ends: Sequence[Frontend]) -> RequestRecords:
    """Records whose tokens come later by the front end of the engine they ended on.

    Iterations that were decided before a request was seen count only where it found the engine at work.
    """
    first_s, finish_s = records.first_token_s.copy(), records.finish_s.copy()
    waited = records.first_scheduled_s > records.arrival_s
    for place, front_end in enumerate(front_ends):
        for busy, seen in ((True, front_end), (False, replace(front_end, pipeline_iterations=0.0))):
            there = (records.engine == place) & (waited == busy)
            later = with_frontend(records, seen)
            first_s[there], finish_s[there] = later.first_token_s[there], later.finish_s[there]
    return replace(records, first_token_s=first_s, finish_s=finish_s)


def _return_of(records: RequestRecords, spec: PolicySpec, objective: Objective) -> float:
    """What finished requests add to the return; what did not finish is the same with and without a front end."""
    done = ~np.isnan(records.finish_s)
    ttft_slo_s, tpot_slo_s = (
        np.array([getattr(slo, name) for slo in spec.slos])[records.class_id[done]]
        for name in ("ttft_s", "tpot_s")
    )
    ttft = (records.first_token_s - records.arrival_s)[done] / ttft_slo_s
    decoding_s = (records.finish_s - records.first_token_s)[done]
    tpot = decoding_s / np.maximum(records.output_tokens[done] - 1, 1) / tpot_slo_s
    factors = objective.factors(spec.classes)[records.class_id[done]]
    value: Any = (
        -objective.latency * (ttft + tpot).sum()
        - objective.ttft_attainment * factors[ttft > 1].sum()
        - objective.tpot_attainment * factors[tpot > 1].sum()
        + objective.goodput * ((ttft <= 1) & (tpot <= 1)).sum()
    )
    return objective.scale * float(value)
