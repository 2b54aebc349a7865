"""What the paper leaves open in its serving experiments, as words that can be set and varied."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.reproduction.choices import choice

SERVED = ("serving", "systems", "ablation", "appendices")
ENGINES = ("searching", *SERVED)
CORRECTED, LITERAL = "corrected", "literal"
MODEL, EXTENDED = "model", "extended"
MEASURED, CAPACITY = "measured", "capacity"


@dataclass(frozen=True)
class OServeChoices:
    """Choices of the study.

    Attributes:
        load: Rate of latency experiments, share of what the best uniform deployment serves of the dearest mix.
        throughput_load: The same of throughput experiments.
        reading: "corrected": capacities are profiled in company and the assignment keeps the mix (Appendix C's
            completion time); "literal": each type alone, and section 4.2's most requests.
        assignment: Among replicas that are alike, types are kept "apart" or shared "even" (`baselines.oserve.policy`).
        min_gain: Share by which a deployment must reach more than the present one to replace it; OServe's and vLLM
            (reload)'s.
        token_budget: Of an iteration, tokens.
        long_answers: Factor on the answers of the types with long ones; 4: to 5000 and more, as section 5.1.
        context: "model": requests that exceed the model's context are left out; "extended": all are served.
        static_layout: How vLLM (static) gets its layout: by "measured" P99 of candidates, or predicted "capacity".
        static_candidates: Layouts of most capacity whose P99 is measured.
        dynamo_period_s: Time between two decisions of Dynamo's planner, seconds.
        minutes: Length of a trace of one mix; longer traces have half as much more.
    """

    load: float = choice(
        0.9,
        0.7,
        1.0,
        1.15,
        1.3,
        parts=SERVED,
        why='Section 6.1 keeps the cluster "neither over- nor under-utilized" and names no rates.',
    )
    throughput_load: float = choice(
        1.3,
        0.9,
        1.0,
        1.6,
        parts=("systems", "appendices"),
        why="Figure 12 names no rates; below 1 all systems serve all.",
    )
    reading: str = choice(
        CORRECTED,
        LITERAL,
        parts=SERVED,
        why="Appendix D profiles a throughput for each type and does not say in which company; Appendix C minimises "
        "the completion time, section 4.2 maximises requests.",
    )
    assignment: str = choice(
        "apart",
        "even",
        parts=SERVED,
        why="Whether replicas that are alike share all types or keep them apart is not said; section 1 has "
        "types served apart.",
    )
    min_gain: float = choice(
        0.05,
        0.02,
        0.0,
        parts=SERVED,
        why="The text switches to whatever the scheduler gives, however little it gains; 0.02 is what two profiled "
        "capacities differ by at least (`envs.deployment.profiling.PRECISION`).",
    )
    token_budget: int = choice(
        8192,
        2048,
        parts=ENGINES,
        why="The budget of vLLM's iterations is not given; 2048 was the default of vLLM V0.",
    )
    long_answers: float = choice(
        4.0,
        1.0,
        parts=ENGINES,
        why="Section 5.1 has answers to 5000 tokens and section 6.1 adds WildChat; Azure's public services of 2023 end "
        "at 1000 to 2000 (factor 1).",
    )
    context: str = choice(
        MODEL,
        EXTENDED,
        parts=ENGINES,
        why="Prompts range to 7999 tokens (section 5.1) and the models' contexts to 2048 or 4096; what became of "
        "longer requests is not said.",
    )
    static_layout: str = choice(
        MEASURED,
        CAPACITY,
        parts=SERVED,
        why='Section 6.1: "we optimize the model deployment for each baseline and report the best results".',
    )
    static_candidates: int = choice(4, 2, parts=SERVED, why="How many layouts the authors tried is not said.")
    dynamo_period_s: float = choice(
        60.0,
        180.0,
        parts=("appendices",),
        why="Dynamo's planner decides every 180 s by default; here as often as OServe, as each baseline is given its "
        "best.",
    )
    minutes: float = choice(10.0, parts=SERVED, why="Lengths of the traces of Tables 1 and 2 are not given.")
