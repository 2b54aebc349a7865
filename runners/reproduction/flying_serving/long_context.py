"""Section 6.5: every prompt as long as the model supports.

The text has lost nearly every number, and the load. Ours: prompts all at once for the throughput, and one at a time for
the latencies, because the paper wants its inter-token latency free of queueing and batching (footnote 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.specs import get_model
from serving_gym.runners.reproduction.claims import (
    WORKED_EXAMPLE,
    Claim,
    Rule,
    above,
    at_least,
    at_most,
    near,
    shown,
)
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.flying_serving.study import (
    DP,
    FLYING,
    LENGTHS,
    MODELS,
    NEMOTRON,
    TP,
    Model,
    Study,
    make_claim,
)
from serving_gym.runners.reproduction.measures import mean, over, prompt_tokens_per_s
from serving_gym.runners.reproduction.trials import Trials, compose_setting, layout_shares

SECTION = "6.5"
NEMOTRON_TOKENS_PER_S = 74e3
FP8_FLOPS = 1979e12  # dense peak of a GPU; paper, section 6.1.1
LOST = "The text has lost the number."

_ANSWER_TOKENS = 512  # room for the longest answer of the workload
_NARROWEST = {NEMOTRON.name: "static_4x2"}  # one H200 does not hold a million tokens
_ALONE = 10  # prompts
_INTERVAL_S = 5.0  # between decisions; arrivals ask for one at once, and a prompt takes up to minutes


def num_episodes(config: ReproduceConfig) -> int:
    """Episodes that `claims` runs."""
    return sum(2 * len(_systems(model)) for model in MODELS)


@dataclass(frozen=True)
class Figures:
    """What one system did."""

    tokens_per_s: float  # prompt tokens, all prompts at once
    ttft_s: float  # mean, one at a time
    tpot_s: float  # mean, one at a time: the paper's inter-token latency


def claims(study: Study) -> list[Claim]:
    """Figure 10, as far as its numbers are known."""
    return [claim for model in MODELS for claim in _claims(study, model)]


def _systems(model: Model) -> tuple[str, ...]:
    """TP, the narrowest layout that holds the context, static DP where that is another, and Flying Serving."""
    return tuple(dict.fromkeys((TP, _NARROWEST.get(model.name, DP), DP, FLYING)))


def _words(model: Model, requests: int, rate: str) -> list[str]:
    return [
        *model.words,
        "workload=flying_long",
        "workload.long_share=1.0",
        f"workload.long_input_tokens={model.context - _ANSWER_TOKENS}",
        f"workload.num_requests={requests}",
        rate,
        "env.decide_on=[long]",
        f"env.decision_interval_s={_INTERVAL_S}",
    ]


def measure(study: Study, model: Model) -> tuple[dict[str, Figures], str]:
    """Every system under both loads; and what Flying Serving did."""
    systems, seeds = _systems(model), [study.config.first_seed]
    at_once = _words(model, study.choices.at_once, "workload.rate_scale=1e6")
    burst = {
        p: study.run(f"{model.context} tokens at once, {model.name}", at_once, p, seeds) for p in systems
    }
    tokens_per_s = {p: prompt_tokens_per_s(trials.episodes[0].records) for p, trials in burst.items()}
    rate_rps = study.choices.alone_share * tokens_per_s[systems[1]] / (model.context - _ANSWER_TOKENS)
    alone = _words(model, _ALONE, f"workload.rate_rps={rate_rps!r}")
    slow = {p: study.run(f"{model.context} tokens alone, {model.name}", alone, p, seeds) for p in systems}
    figures = {p: Figures(tokens_per_s[p], mean(slow[p].ttft_s), mean(slow[p].tpot_s)) for p in systems}
    return figures, (
        f"Measured: Flying Serving ordered, by time, {_listed(burst[FLYING])} for prompts that come at once and "
        f"{_listed(slow[FLYING])} for prompts that come one at a time."
    )


def _listed(trials: Trials) -> str:
    return ", ".join(f"{layout} {share:.0%}" for layout, share in layout_shares(trials).items())


def _claims(study: Study, model: Model) -> list[Claim]:
    figures, beyond = measure(study, model)
    ours, tp, name = figures[FLYING], figures[TP], f"{model.name}, {model.context // 1024}K context"
    rival = _NARROWEST.get(model.name, DP)
    dp = figures[rival]
    why = (
        f" One GPU does not hold the context: static DP serves {figures[DP].tokens_per_s:.0f} tokens/s, and {rival}, "
        "the narrowest layout that does, stands in for it."
        if rival != DP
        else ""
    )

    def ratio(what: str, value: float | None, found: float, rule: Rule, note: str = LOST) -> Claim:
        return make_claim(SECTION, f"{name}: {what}", value, found, "x", rule, note=note + why, beyond=beyond)

    claims = [
        ratio(
            "peak prompt throughput, Flying Serving over DP", 1.0, over(ours.tokens_per_s, dp.tokens_per_s),
            at_least(1.0), '"DP-level".',
        ),
        ratio("TTFT, Flying Serving over TP", None, over(ours.ttft_s, tp.ttft_s), at_most(1.0), '"Nearly TP-like".'),
        ratio("TTFT, DP over Flying Serving", None, over(dp.ttft_s, ours.ttft_s), above()),
        ratio(
            "inter-token latency, Flying Serving over TP", 1.05, over(ours.tpot_s, tp.tpot_s), at_most(1.05, 0.0),
            "Mean TPOT, one request at a time.",
        ),
        ratio("inter-token latency, DP over Flying Serving", None, over(dp.tpot_s, ours.tpot_s), above()),
    ]  # fmt: skip
    if model != NEMOTRON:
        gain = over(ours.tokens_per_s, tp.tokens_per_s)
        return [*claims, ratio("peak prompt throughput, Flying Serving over TP", None, gain, above())]
    held = [figures[policy].tokens_per_s for policy in (TP, rival, FLYING)]
    return [
        *claims,
        ratio(
            "peak prompt throughput, fastest over slowest system", 1.0, over(max(held), min(held)), near(1.0),
            '"All three converge".',
        ),
        *(
            make_claim(
                SECTION, f"{name}: peak prompt throughput, {policy}", NEMOTRON_TOKENS_PER_S,
                figures[policy].tokens_per_s, "tokens/s", shown(LENGTHS), note=why.strip(),
            )
            for policy in figures
        ),
        _peak_share(study, model),
    ]  # fmt: skip


def _peak_share(study: Study, model: Model) -> Claim:
    """What the published throughput asks of the GPUs: an operation count against section 6.1.1's peak."""
    cluster = compose_setting(model.words).cluster
    spec = get_model(cluster.model)
    attention = (
        spec.attention_flops_per_pair * model.context / 2
    )  # a token looks at half the prompt on average
    token_flop = spec.dense_flops_per_token + attention
    need, peak = NEMOTRON_TOKENS_PER_S * token_flop, cluster.num_gpus * FP8_FLOPS
    return make_claim(
        SECTION, f"{model.name}: operations of 74K tokens/s over the FP8 peak of eight H200", 1.0, need / peak, "x",
        at_most(1.0, 0.0, least=0.0), kind=WORKED_EXAMPLE,
        note=f"A token of a prompt of {model.context} tokens takes {token_flop:.3g} operations on average, of which "
        f"attention {attention:.3g}; 74,000 a second take {need:.3g}, and eight GPUs have {peak:.3g} (section 6.1.1).",
    )  # fmt: skip
