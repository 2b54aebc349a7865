"""Sections 4 and 7.2.1 to 7.2.7: instance-hours, latency and start-ups of SageServe, reactive scaling and Chiron."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from serving_gym.envs.workload.tiers import IW_F, IW_N
from serving_gym.runners.reproduction.claims import Claim, above, at_least, at_most, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over, percentile
from serving_gym.runners.reproduction.parts import num_seeds
from serving_gym.runners.reproduction.sageserve.peaks import peak_forecasts
from serving_gym.runners.reproduction.sageserve.scaling_study import (
    CHIRON,
    LT_I,
    LT_U,
    LT_UA,
    NOVEMBER,
    REACTIVE,
    REGIONS,
    SILOED,
    Outcome,
    ScalingStudy,
    Setting,
)
from serving_gym.runners.reproduction.sageserve.study import make_claim

PEAK_DAY = Setting()
HOURS = {REACTIVE: 362.25, LT_I: 274.5, LT_U: 291.0, LT_UA: 277.5, CHIRON: 1146.0}  # Figure 11, three regions
NOVEMBER_DAY = Setting(iw_to_niw=NOVEMBER, hours=227.0)
NOVEMBER_HOURS = {REACTIVE: 302.0, LT_I: 227.0, LT_U: 248.0, LT_UA: 233.0}
FEW_NIW, MANY_NIW = replace(NOVEMBER_DAY, iw_to_niw=9.0), replace(NOVEMBER_DAY, iw_to_niw=1.0)
A100 = Setting(gpu="A100-80GB")
SCOUT = Setting(model="llama-4-scout", engine="vllm-0.15")
WEEK = Setting(span_h=(0.0, 168.0), one_seed=True)
# Section 4: 1.4 million interactive requests and 0.2 million others, on A100; Table 1.
POOLED = Setting(gpu="A100-80GB", iw_to_niw=7.0, ttft_s=60.0)
LATENCIES = {  # of siloed and unified: P95 of TTFT and of the end-to-end latency, seconds
    "bloom-176b": ((14.5, 12.9), (55.3, 53.3)),
    "llama-2-70b": ((34.9, 34.5), (98.3, 99.1)),
    "llama-3.1-8b": ((1.0, 1.0), (10.6, 10.5)),
    "llama-3.2-3b": ((1.0, 1.0), (19.2, 18.9)),
}
FEWER_UNIFIED = 0.345  # instance-hours, all four models
_LIGHT_HOURS = 144.0  # of the two small models, which stay at their fewest instances throughout

_STRATEGIES = (LT_I, LT_U, LT_UA)
_NOT_STATED = shown("the paper does not say")
_ABSOLUTE = shown("a third of the paper's regions, and requests whose traces are not public")


def saved(study: ScalingStudy, setting: Setting, policy: str, than: str = REACTIVE) -> float:
    """Share of instance-hours that a policy needs less than another."""
    ours, theirs = (study.outcome(name, setting).instance_h for name in (policy, than))
    return 1.0 - over(ours, theirs)


def _side_by_side(study: ScalingStudy, setting: Setting, policies: Iterable[str]) -> list[Claim]:
    """Latency of each interactive tier against its promise; instance-hours of the day and after it; NIW owed."""
    found = []
    for policy in policies:
        outcome = study.outcome(policy, setting)
        for tier, sla_s, name in ((IW_F, 1.0, "IW-F"), (IW_N, 60.0, "IW-N")):
            found.append(
                make_claim(
                    "2.2", f"Llama-2, peak day, {policy}: P95 TTFT of {name} over its SLA of {sla_s:g} s", None,
                    percentile(outcome.of(tier), 95) / sla_s, "x", at_most(1.0, 0.0, 0.0),
                    note="Section 2.2 promises so much at the 95th percentile; no figure shows it by tier.",
                )
            )  # fmt: skip
        parts = {
            "instance-hours until the last arrival": (outcome.day_h, "h"),
            "instance-hours after it": (outcome.instance_h - outcome.day_h, "h"),
            "instance-hours that the held NIW requests are worth": (outcome.niw_owed_h, "h"),
            "NIW requests held at the last arrival": (outcome.niw_owed, "requests"),
        }
        found += [
            make_claim("7.2.1", f"Llama-2, peak day, {policy}: {label}", None, value, unit, _NOT_STATED)
            for label, (value, unit) in parts.items()
        ]
    return found


def _note(study: ScalingStudy, setting: Setting, *policies: str) -> str:
    """What was measured, in figures."""
    return "; ".join(f"{policy} {study.outcome(policy, setting)}" for policy in policies) + "."


def peak_day(study: ScalingStudy) -> list[Claim]:
    """Sections 7.2.1 to 7.2.4: Figures 11 and 13."""
    found = [
        make_claim(
            "7.2.1, Figure 11",
            f"Llama-2, peak day, {policy}: instance-hours of one region",
            hours / REGIONS,
            study.outcome(policy, PEAK_DAY).instance_h,
            "h",
            _ABSOLUTE,
            note=f"{study.outcome(policy, PEAK_DAY).thinking_s:.1f} s of the day's simulation were the policy's own.",
        )
        for policy, hours in HOURS.items()
    ]
    found += _side_by_side(study, PEAK_DAY, HOURS)
    found += peak_forecasts(study, PEAK_DAY)
    beyond = "Measured: " + _note(study, PEAK_DAY, *HOURS)
    for policy in _STRATEGIES:
        paper = 1 - HOURS[policy] / HOURS[REACTIVE]
        rule = above(0.0) if study.config.quick else at_least(paper)
        found += [
            make_claim(
                "7.2.1", f"Llama-2, peak day, {policy}: instance-hours saved against Reactive", paper,
                saved(study, PEAK_DAY, policy), "share", rule, beyond=beyond,
            ),
            make_claim(
                "7.2.1", f"Llama-2, peak day, {policy}: instance-hours saved until the last arrival", paper,
                1.0 - over(study.outcome(policy, PEAK_DAY).day_h, study.outcome(REACTIVE, PEAK_DAY).day_h), "share",
                shown("the paper does not say whether its hours include what is served after the day"),
            ),
        ]  # fmt: skip
    reactive, lt_u, lt_ua, chiron = (
        study.outcome(name, PEAK_DAY) for name in (REACTIVE, LT_U, LT_UA, CHIRON)
    )
    return [
        *found,
        make_claim(
            "7.2.3", "Llama-2, peak day: Chiron's instance-hours over Reactive's", HOURS[CHIRON] / HOURS[REACTIVE],
            over(chiron.instance_h, reactive.instance_h), "x", above(), beyond=beyond,
        ),
        *(
            make_claim(
                "7.2.2, Figure 13a", f"Llama-2, peak day: P95 TTFT of {name} over Reactive's", None,
                over(outcome.ttft_s(), reactive.ttft_s()), "x", at_most(1.0, least=0.0),
                note="The paper says that LT-U and LT-UA do no harm, and gives no number.", beyond=beyond,
            )
            for name, outcome in ((LT_U, lt_u), (LT_UA, lt_ua))
        ),
        make_claim(
            "7.2.4, Figure 13b", "Llama-2, peak day: start-up time that LT-UA saves against Reactive", 0.7,
            1.0 - over(lt_ua.starting_h, reactive.starting_h), "share", at_least(0.7), beyond=beyond,
        ),
    ]  # fmt: skip


def november(study: ScalingStudy) -> list[Claim]:
    """Section 7.2.7: the trace of November 2024."""
    beyond = "Measured: " + _note(study, NOVEMBER_DAY, *NOVEMBER_HOURS)
    return [
        make_claim(
            "7.2.7", f"Llama-2, peak day of November 2024, {policy}: instance-hours saved against Reactive",
            1 - hours / NOVEMBER_HOURS[REACTIVE], saved(study, NOVEMBER_DAY, policy), "share",
            at_least(1 - hours / NOVEMBER_HOURS[REACTIVE]), beyond=beyond,
        )
        for policy, hours in NOVEMBER_HOURS.items()
        if policy != REACTIVE
    ]  # fmt: skip


def ablations(study: ScalingStudy) -> list[Claim]:
    """Section 7.2.7: two mixes of tiers, and A100."""
    found = []
    for what, setting, section, paper in (
        ("nine interactive requests for each other", FEW_NIW, "7.2.7", 0.263),
        ("as many interactive requests as others", MANY_NIW, "7.2.7", 0.22),
        ("Llama-2 on A100", A100, "7.2.7", 0.282),
    ):
        found.append(
            make_claim(
                section, f"{what}: instance-hours that LT-UA saves against Reactive", paper,
                saved(study, setting, LT_UA), "share", at_least(paper),
                beyond="Measured: " + _note(study, setting, REACTIVE, LT_UA),
            )
        )  # fmt: skip
    return found


def scout(study: ScalingStudy) -> list[Claim]:
    """Section 7.2.5: a mixture of experts as a fifth model, at the load that takes as many instances as Llama-2's."""
    section, no_number = "7.2.5, Figure 14", "The paper says so, and gives no number."
    dense, reactive, ours = (
        study.outcome(policy, setting)
        for policy, setting in ((LT_UA, PEAK_DAY), (REACTIVE, SCOUT), (LT_UA, SCOUT))
    )
    beyond = f"Measured: {_note(study, SCOUT, REACTIVE, LT_UA)} Llama-2, LT-UA: {dense}."
    return [
        make_claim(
            section, "Llama 4 Scout: instance-hours that LT-UA saves against Reactive", None,
            saved(study, SCOUT, LT_UA), "share", above(0.0), note=no_number, beyond=beyond,
        ),
        make_claim(
            section, "Llama 4 Scout: P95 TTFT of LT-UA over Reactive's", None,
            over(ours.ttft_s(), reactive.ttft_s()), "x", at_most(1.0, least=0.0), note=no_number, beyond=beyond,
        ),
        make_claim(
            section, "P95 end-to-end latency under LT-UA, Llama-2 over Llama 4 Scout", None,
            over(dense.e2e_s, ours.e2e_s), "x", above(), note=no_number, beyond=beyond,
        ),
        make_claim(
            section, "prompt tokens/s of an instance, Llama 4 Scout over Llama-2", None,
            over(study.capacity_tps(SCOUT), study.capacity_tps(PEAK_DAY)), "x", above(),
            note="So much fewer are the instance-hours of the same load, which the paper says and gives no number of.",
        ),
    ]  # fmt: skip


def bursting(burst_s: float) -> Setting:
    """The peak day with one burst."""
    return Setting(params=(("bursts_per_day", 1), ("burst_s", burst_s)), one_seed=True)


def burst(study: ScalingStudy) -> list[Claim]:
    """Section 7.2.7, Figure 16a: requests that arrive while a burst lasts, or within an hour after it."""
    burst_s = study.choices.burst_s
    setting = bursting(burst_s)
    begin_s = study.bursts_s(setting)[0]
    within = (begin_s, begin_s + burst_s + 3600.0)
    ttft = {policy: study.outcome(policy, setting).ttft_s(within) for policy in _STRATEGIES}
    measured = "P95 TTFT: " + ", ".join(f"{policy} {value:.1f} s" for policy, value in ttft.items()) + "."
    return [
        make_claim(
            "7.2.7, Figure 16a",
            f"Llama-2, load times eight: P95 TTFT of {policy} over LT-UA's", None,
            over(ttft[policy], ttft[LT_UA]), "x", above(),
            note=f"The paper says that only LT-UA goes beyond the plan, and gives no number. {measured}",
            beyond="Why is not known.",
        )
        for policy in (LT_I, LT_U)
    ]  # fmt: skip


def week(study: ScalingStudy) -> list[Claim]:
    """Section 7.2.7: Figure 16b."""
    policies = (REACTIVE, LT_U, LT_UA)
    beyond = f"Measured: {_note(study, WEEK, *policies)}"
    return [
        make_claim(
            "7.2.7, Figure 16b", f"Llama-2, a week: {what} of {policy} over Reactive's", None,
            over(pick(study.outcome(policy, WEEK)), pick(study.outcome(REACTIVE, WEEK))), "x", at_most(1.0, least=0.0),
            note="The paper shows it in a figure without numbers.", beyond=beyond,
        )
        for policy in policies[1:]
        for what, pick in (("P95 TTFT", Outcome.ttft_s), ("instance-hours", lambda outcome: outcome.instance_h))
    ]  # fmt: skip


def pooled(model: str, policy: str, light_ratio: float = 0.05) -> Setting:
    """The setting of section 4 for a model; siloed requests do not wait in the queue manager."""
    heavy = model in ("bloom-176b", "llama-2-70b")
    own = replace(POOLED, model=model, hold=policy != SILOED)
    return own if heavy else replace(own, hours=_LIGHT_HOURS, load_ratio=light_ratio)


def pools(study: ScalingStudy) -> list[Claim]:
    """Section 4: Figure 8 and Table 1."""
    both = {
        model: {
            policy: study.outcome(policy, pooled(model, policy, study.choices.light_ratio))
            for policy in (SILOED, REACTIVE)
        }
        for model in LATENCIES
    }
    hours = {
        policy: sum(outcomes[policy].instance_h for outcomes in both.values())
        for policy in (SILOED, REACTIVE)
    }
    figures = "; ".join(
        f"{model} siloed {outcomes[SILOED]}, unified {outcomes[REACTIVE]}" for model, outcomes in both.items()
    )
    found = [
        make_claim(
            "4, Figure 8", "four models on A100: instance-hours that one pool saves against two", FEWER_UNIFIED,
            1.0 - over(hours[REACTIVE], hours[SILOED]), "share", at_least(FEWER_UNIFIED),
            beyond=f"Measured: {figures}.",
        )
    ]  # fmt: skip
    for model, (ttft_s, e2e_s) in LATENCIES.items():
        siloed, unified = both[model][SILOED], both[model][REACTIVE]
        for what, paper, ours in (
            ("TTFT", ttft_s, (siloed.ttft_s(), unified.ttft_s())),
            ("end-to-end latency", e2e_s, (siloed.e2e_s, unified.e2e_s)),
        ):
            found += [
                make_claim("4, Table 1", f"{model}, {name}: P95 {what}", paper[i], ours[i], "s", _ABSOLUTE)
                for i, name in enumerate(("siloed", "unified"))
            ]
            found.append(
                make_claim(
                    "4, Table 1", f"{model}: P95 {what}, unified over siloed", over(paper[1], paper[0]),
                    over(ours[1], ours[0]), "x", at_most(over(paper[1], paper[0])), beyond=f"Measured: {figures}.",
                )
            )  # fmt: skip
    return found


PARTS: dict[str, Callable[[ScalingStudy], list[Claim]]] = {
    "peak": peak_day,
    "november": november,
    "ablations": ablations,
    "scout": scout,
    "burst": burst,
    "pools": pools,
    "week": week,
}
_ONE_SEED = {"burst": len(_STRATEGIES), "week": 3}
_EACH_SEED = {
    "peak": len(HOURS),
    "november": len(NOVEMBER_HOURS),
    "ablations": 2 * 3,
    "scout": 2 + 1,
    "pools": 2 * len(LATENCIES),
}


def num_episodes(config: ReproduceConfig) -> dict[str, int]:
    """Episodes of each part, at most."""
    return _ONE_SEED | {part: count * num_seeds(config) for part, count in _EACH_SEED.items()}
