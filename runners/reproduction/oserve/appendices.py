"""Appendices G to J: deployments over time, Llumnix and Dynamo, TTFT and TBT, and homogeneous workloads.

Llumnix runs whole, with migration, as the router of a fleet that has the layout of vLLM (static). How Dynamo's planner
counts is not in the text (`baselines/oserve/dynamo.py`).
"""

from __future__ import annotations

from typing import Any

from serving_gym.runners.reproduction.claims import Claim, Rule, at_least, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.episodes import Figures, System, Trace, figures
from serving_gym.runners.reproduction.oserve.study import make_claim
from serving_gym.runners.reproduction.oserve.systems import TRACES, saturated

RIVALS = (System("llama-30b", 1), System("llama-2-70b", 2))  # Appendix H
CASE = System("opt-66b", 2)  # Appendix G, Table 3
LLUMNIX, DYNAMO = (1.32, 1.51), (0.12, 0.20)
TTFT, TBT = (1.1, 1.6), (1.5, 1.6)
SAME = 0.03  # Appendix J
ALIKE = Trace(("alike",), steady=True, types=1)


def _rivals(config: ReproduceConfig) -> tuple[System, ...]:
    return RIVALS[:1] if config.quick else RIVALS


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a contender on a system."""
    return 5 * len(_rivals(config)) + 2 * len(_rivals(config)) + 2 + (0 if config.quick else 1)


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """All four appendices."""
    rows = [] if config.quick else [_case(config, bar)]
    for system in _rivals(config):
        mine, llumnix, dynamo = (
            _run(config, bar, system, TRACES[0], name) for name in ("oserve", "llumnix", "dynamo")
        )
        rows += [
            _more(
                "H",
                f"{system}: P99 latency of Llumnix over OServe's",
                LLUMNIX,
                llumnix.p99_s,
                mine.p99_s,
            ),
            _more(
                "H",
                f"{system}: throughput of OServe over Llumnix's",
                LLUMNIX,
                *(
                    _run(config, bar, system, saturated(config, TRACES[0]), name).rps
                    for name in ("oserve", "llumnix")
                ),
            ),
            _more(
                "H",
                f"{system}: P99 latency of Dynamo over OServe's",
                (1 + DYNAMO[0], 1 + DYNAMO[1]),
                dynamo.p99_s,
                mine.p99_s,
            ),
        ]
    for system in _rivals(config):
        mine, reload = (_run(config, bar, system, TRACES[0], name) for name in ("oserve", "reload"))
        rows += [
            _more(
                "I",
                f"{system}: P99 TTFT of vLLM (reload) over OServe's",
                TTFT,
                reload.ttft_p99_s,
                mine.ttft_p99_s,
            ),
            _more(
                "I",
                f"{system}: P99 TBT of vLLM (reload) over OServe's",
                TBT,
                reload.tpot_p99_s,
                mine.tpot_p99_s,
            ),
        ]
    return [*rows, _alike(config, bar)]


def _run(config: ReproduceConfig, bar: Any, system: System, trace: Trace, contender: str) -> Figures:
    bar.set_postfix_str(f"{system}, {contender}", refresh=False)
    found = figures(config, system, trace, contender)
    bar.update(1)
    return found


def _more(section: str, what: str, stated: tuple[float, float], first: float, second: float) -> Claim:
    """A ratio of which the paper states a range; it holds from the lower end on."""
    return make_claim(
        section,
        what,
        stated[0],
        over(first, second),
        "x",
        at_least(stated[0]),
        note=f"{first:.3g} and {second:.3g}; the paper's range is {stated[0]:.2f} to {stated[1]:.2f}.",
    )


def _case(config: ReproduceConfig, bar: Any) -> Claim:
    """Appendix G: what is deployed over time."""
    found = _run(config, bar, CASE, TRACES[0], "oserve")
    return make_claim(
        "G, Table 3",
        f"{CASE} GPUs: different deployments over the trace",
        6.0,
        float(len(set(found.deployments))),
        "deployments",
        shown("the paper shows six chosen spans of its own trace"),
        note=f"{found.switches:.1f} switches an episode; {' -> '.join(found.deployments) or 'none'}.",
    )


def _alike(config: ReproduceConfig, bar: Any) -> Claim:
    """Appendix J: one type at a steady rate."""
    system = _rivals(config)[-1]
    mine, static = (_run(config, bar, system, ALIKE, name) for name in ("oserve", "static"))
    return make_claim(
        "J",
        f"{system}, homogeneous: P99 latency of OServe over that of vLLM (static)",
        1.0,
        over(mine.p99_s, static.p99_s),
        "x",
        Rule("within 3 % of vLLM (static), or below", lambda ours: ours <= 1.0 + SAME),
        note=f"Short prompts and answers at a steady rate; {mine.p99_s:.3g} and {static.p99_s:.3g} s.",
    )
