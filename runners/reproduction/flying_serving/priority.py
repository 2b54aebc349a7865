"""Section 6.3, Table 1: priority and normal requests on Llama-3-70B."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.reproduction.claims import Claim, at_least, at_most, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.flying_serving.study import (
    COMPARED,
    DP,
    FLYING,
    LENGTHS,
    LLAMA,
    PRIORITY_RPS,
    TP,
    Study,
    make_claim,
    range_word,
)
from serving_gym.runners.reproduction.measures import mean, over
from serving_gym.runners.reproduction.parts import num_seeds
from serving_gym.runners.reproduction.trials import Trials, layout_shares, switches

SECTION = "6.3"


@dataclass(frozen=True)
class Row:
    """A column of Table 1, or ours: seconds and tokens per second."""

    tpot_priority_s: float
    tpot_s: float
    ttft_priority_s: float
    ttft_s: float
    peak_tokens_per_s: float


TABLE_1 = {
    TP: Row(0.022, 0.022, 0.063, 2.130, 2530),
    DP: Row(0.032, 0.032, 0.166, 0.166, 3164),
    FLYING: Row(0.024, 0.028, 0.074, 0.142, 3040),
}
_FIGURES = {
    "tpot_priority_s": ("mean TPOT of priority requests", "s"),
    "tpot_s": ("mean TPOT of all requests", "s"),
    "ttft_priority_s": ("mean TTFT of priority requests", "s"),
    "ttft_s": ("mean TTFT of all requests", "s"),
    "peak_tokens_per_s": ("peak throughput", "tokens/s"),
}


def num_episodes(config: ReproduceConfig) -> int:
    """Episodes that `claims` runs."""
    return 2 * len(COMPARED) * num_seeds(config)


def claims(study: Study) -> list[Claim]:
    """Table 1 twice: at the published rates, and under the queueing pressure that the text speaks of."""
    pressed = study.busy_range(LLAMA, PRIORITY_RPS)
    published = _claims(study, PRIORITY_RPS, "published rates", absolute=True)
    return published + _claims(
        study, pressed, f"{pressed[0]:.1f} to {pressed[1]:.1f} requests/s", absolute=False
    )


def _claims(study: Study, rates: tuple[float, float], what: str, absolute: bool) -> list[Claim]:
    words = [
        "experiment=priority",
        'cluster.engine=""',
        f"workload.num_requests={study.requests}",
        f"workload.priority_share={study.choices.priority_share!r}",
        range_word("low_rate_rps", rates),
    ]
    systems = {policy: study.run(f"priority, {what}", words, policy) for policy in COMPARED}
    rows = {policy: measure(trials) for policy, trials in systems.items()}
    found = _absolute(rows, what) if absolute else []
    return found + _ratios(rows, what, _explain(study, systems[FLYING], rates))


def measure(trials: Trials) -> Row:
    """Our column of the table."""
    urgent = trials.pooled("class_id") == trials.classes.index("priority")
    return Row(
        mean(trials.tpot_s, urgent),
        mean(trials.tpot_s),
        mean(trials.ttft_s, urgent),
        mean(trials.ttft_s),
        trials.peak_tokens_per_s,
    )


def _absolute(rows: dict[str, Row], what: str) -> list[Claim]:
    return [
        make_claim(
            SECTION, f"priority, {what}: {label}, {policy}", getattr(TABLE_1[policy], key),
            getattr(rows[policy], key), unit, shown(LENGTHS),
        )
        for key, (label, unit) in _FIGURES.items()
        for policy in COMPARED
    ]  # fmt: skip


def _ratios(rows: dict[str, Row], what: str, beyond: str) -> list[Claim]:
    """The text's own comparisons; its numbers, or where it rounds, those of the table."""
    compared = (
        ("TPOT of priority requests, Flying Serving over TP", "tpot_priority_s", FLYING, TP, 1.09, at_most),
        ("TTFT of priority requests, Flying Serving over TP", "ttft_priority_s", FLYING, TP, 1.17, at_most),
        ("TPOT of priority requests, DP over Flying Serving", "tpot_priority_s", DP, FLYING, 1.33, at_least),
        ("TTFT of priority requests, DP over Flying Serving", "ttft_priority_s", DP, FLYING, 2.24, at_least),
        ("TTFT of all requests, TP over Flying Serving", "ttft_s", TP, FLYING, 15.0, at_least),
        ("TTFT of all requests, DP over Flying Serving", "ttft_s", DP, FLYING, 1.17, at_least),
        ("peak throughput, Flying Serving over DP", "peak_tokens_per_s", FLYING, DP, 0.96, at_least),
    )
    return [
        make_claim(
            SECTION, f"priority, {what}: {label}", value,
            over(getattr(rows[first], key), getattr(rows[second], key)), "x", rule(value), beyond=beyond,
        )
        for label, key, first, second, value, rule in compared
    ]  # fmt: skip


def _explain(study: Study, trials: Trials, rates: tuple[float, float]) -> str:
    """What Flying Serving did, for the claims that fail."""
    shares = ", ".join(f"{layout} {share:.0%}" for layout, share in layout_shares(trials).items())
    tp, dp = (study.capacity_rps(LLAMA, policy) for policy in (TP, DP))
    urgent = trials.pooled("class_id") == trials.classes.index("priority")
    e2e_s, time_s = trials.pooled("e2e_s"), sum(episode.duration_s for episode in trials.episodes)
    load = float(e2e_s.sum()) / time_s / trials.setting.cluster.num_gpus
    return (
        f"Measured: {sum(rates) / 2:.1f} requests/s are {sum(rates) / 2 / tp:.0%} of what static TP and "
        f"{sum(rates) / 2 / dp:.0%} of what static DP serve; layouts ordered, by time: {shares}; "
        f"{switches(trials):.0f} switches an episode; {load:.1f} requests a GPU were in the system on average, "
        f"{e2e_s[urgent].sum() / time_s:.1f} of priority on the node."
    )
