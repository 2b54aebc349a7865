"""What LLM-Mesh's text leaves open, and what this reproduction takes."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.reproduction.choices import choice

STRONG, LITERAL = "strong", "literal"
MEMORY, FIGURE_8 = "memory", "figure_8"

_RUNS = ("capacity", "ablation", "mixes")


@dataclass(frozen=True)
class MeshChoices:
    """Choices of LLM-Mesh's reproduction; each `why` says what the text leaves open."""

    load: float = choice(
        5.0, 3.0, 1.0, parts=(*_RUNS, "footprint"),
        why="Section 8.1 does not say which functions were drawn. Functions drawn uniformly load the nodes less than "
        "the paper's; at five times the trace's rate sllm uses the 3.2 GPU nodes of section 8.2 for 32 models of 3B.",
    )  # fmt: skip
    largest_share: float = choice(
        1.0, 0.2, parts=_RUNS,
        why="Of the functions drawn one can have most of a seed's requests; section 8.1 does not say whether one had.",
    )  # fmt: skip
    reading: str = choice(
        STRONG, LITERAL, parts=_RUNS,
        why="Section 4 speaks of a keep-alive policy and gives its time alone, not whether idle instances give way "
        "earlier to new ones that need their memory.",
    )  # fmt: skip
    watermark: float = choice(0.2, 0.05, 0.5, parts=_RUNS, why="Section 6.2 gives no value of w.")
    profile_error: float = choice(
        0.1, 0.0, 0.2, parts=_RUNS,
        why="Section 5.2 measures iteration times and does not say how far they are off; 5.3 allows for a tenth.",
    )  # fmt: skip
    iterations: float = choice(
        1.0, 1.1, parts=_RUNS,
        why="How many times as long as profiled iterations take: ours are published tables of kernels and a roofline.",
    )  # fmt: skip
    cpu_resize: str = choice(
        MEMORY, FIGURE_8, parts=_RUNS,
        why="Figure 8 measures resizes of KV caches on GPUs; how long they take on CPU nodes is not said.",
    )  # fmt: skip
    patience_s: float = choice(
        30.0, 10.0, parts=_RUNS,
        why="Section 8.2 says that requests are dropped, and not after which time.",
    )  # fmt: skip
    mix_models: int = choice(
        64, 32, 128, parts=("mixes",), why="Section 8.4 does not say how many models there are."
    )
    top: float = choice(
        0.01, 0.002, 0.0, parts=("footprint",),
        why="Figure 4's function is the trace's 1st percentile by requests; the sample read here has "
        "1,010 of its functions, and how many of them are above it is not known. 0 is the function with most requests.",
    )  # fmt: skip
