"""The papers whose evaluations are reproduced."""

from __future__ import annotations

from typing import Any

from serving_gym.runners.reproduction.flying_serving import evaluation as flying_serving
from serving_gym.runners.reproduction.flying_serving.choices import FlyingChoices
from serving_gym.runners.reproduction.llm_mesh import evaluation as llm_mesh
from serving_gym.runners.reproduction.llm_mesh.choices import MeshChoices
from serving_gym.runners.reproduction.oserve import evaluation as oserve
from serving_gym.runners.reproduction.oserve.choices import OServeChoices
from serving_gym.runners.reproduction.parts import Paper
from serving_gym.runners.reproduction.preserve import evaluation as preserve
from serving_gym.runners.reproduction.preserve.choices import PreServeChoices
from serving_gym.runners.reproduction.sageserve import evaluation as sageserve
from serving_gym.runners.reproduction.sageserve.choices import SageServeChoices

PAPERS = {
    "flying_serving": Paper(
        flying_serving, "episode", FlyingChoices, cut="one seed; a quarter of the requests of an episode"
    ),
    "llm_mesh": Paper(
        llm_mesh,
        "episode",
        MeshChoices,
        cut="one seed; 2 minutes of the trace instead of 30; 32 x 3B, 64 x 7B, 128 x 7B and 128 x 13B of Figure 12, at "
        "one load; two of five mixes; the paper's ablations alone",
        seeds=1,
    ),
    "oserve": Paper(
        oserve,
        "step",
        OServeChoices,
        cut="one seed; a quarter of the requests, at least 400; OPT-30B on one trace instead of four models on two; "
        "S1, S5 and T4 of Tables 1 and 2; no ablation and no appendices; three epochs of forecasts",
        alone=("forecasting",),
        seeds=2,
    ),
    "preserve": Paper(
        preserve,
        "episode",
        PreServeChoices,
        cut="one seed; a quarter of an episode's time; an hour and a half of chat instead of two days of two services; "
        "two rates; 4 and 64 engines; Azure's prompts by three forecasters",
        alone=("forecasting", "scaling"),
    ),
    "sageserve": Paper(
        sageserve,
        "episode",
        SageServeChoices,
        cut="one seed; planning, tiers and peak alone; four hours of the peak day, held to the direction of savings "
        "alone; a quarter of the requests of tiers; no spare machines in planning",
        alone=("planning", "tiers", "regions"),
        seeds=1,
    ),
}


def choices_of_papers() -> dict[str, type[Any]]:
    """Dataclass of the choices of each paper."""
    return {name: paper.choices for name, paper in PAPERS.items()}
