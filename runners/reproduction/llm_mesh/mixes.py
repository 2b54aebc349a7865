"""Section 8.4, figure 14: models of three sizes together, from mostly small to mostly large."""

from __future__ import annotations

import numpy as np

from serving_gym.runners.reproduction.choices import make_choices
from serving_gym.runners.reproduction.claims import Claim, at_most, near
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh.choices import MeshChoices
from serving_gym.runners.reproduction.llm_mesh.study import (
    MESH,
    OTHER_FUNCTIONS,
    SLLM_CPU,
    Cell,
    Study,
    make_claim,
)
from serving_gym.runners.reproduction.measures import over

RATIOS = ((4, 1, 1), (2, 1, 1), (1, 1, 1), (1, 1, 2), (1, 1, 4))
DIFFERENCE = {MESH: 1.2, SLLM_CPU: 0.7}  # GPU nodes from 4:1:1 to 1:1:4
_NODES_TOLERANCE = 0.25  # of a difference of means


def _ratios(config: ReproduceConfig) -> tuple[tuple[int, int, int], ...]:
    return (RATIOS[0], RATIOS[-1]) if config.quick else RATIOS


def cells(config: ReproduceConfig) -> list[Cell]:
    """What is run."""
    count = make_choices(MeshChoices, config.choices).mix_models
    return [_cell(system, ratio, count) for ratio in _ratios(config) for system in (MESH, SLLM_CPU)]


def claims(study: Study) -> list[Claim]:
    """GPU nodes in use for each mix, and how they change."""
    nodes = {cell: study.nodes(cell, "gpu") for cell in cells(study.config)}
    rows, count = [], study.choices.mix_models
    for ratio in _ratios(study.config):
        mesh, other = (nodes[_cell(system, ratio, count)] for system in (MESH, SLLM_CPU))
        met = ", ".join(
            f"{system} {study.attainment(_cell(system, ratio, count)):.1%}" for system in (MESH, SLLM_CPU)
        )
        rows.append(
            make_claim(
                "8.4, figure 14",
                f"3B, 7B and 13B at {':'.join(map(str, ratio))}: GPU nodes in use over sllm_cpu's",
                None,
                over(mesh, other),
                "ratio",
                at_most(1.0, 0.0, least=0.0),
                note=f"{count} models: {mesh:.2f} and {other:.2f} nodes; both SLOs met: {met}. {study.note}",
            )
        )
    for system, stated in DIFFERENCE.items():
        rows.append(
            make_claim(
                "8.4",
                f"{system}: GPU nodes in use at 1:1:4 more than at 4:1:1",
                stated,
                nodes[_cell(system, RATIOS[-1], count)] - nodes[_cell(system, RATIOS[0], count)],
                "nodes",
                near(stated, _NODES_TOLERANCE),
                note=f"{OTHER_FUNCTIONS.capitalize()}. {study.note}",
            )
        )
    return [*rows, *_instances(study)]


def _instances(study: Study) -> list[Claim]:
    """Instances of a node: "each node can only deploy around two", and "three to four"."""
    rows = []
    for ratio, stated, rule in (
        (RATIOS[-1], 2.0, near(2.0, 0.25)),
        (RATIOS[0], 3.5, near(3.5, 0.25)),
    ):
        outcomes = study.outcomes(_cell(MESH, ratio, study.choices.mix_models))
        found = {
            kind: float(np.nanmean([outcome.timeline.instances_a_node(k) for outcome in outcomes]))
            for k, kind in enumerate(("cpu", "gpu"))
        }
        for kind, ours in found.items():
            rows.append(
                make_claim(
                    "8.4",
                    f"llm_mesh at {':'.join(map(str, ratio))}: instances of a {kind.upper()} node in use",
                    stated,
                    ours,
                    "instances",
                    rule,
                    note=f"Mean over time and nodes with instances. {study.note}",
                )
            )
    return rows


def _cell(system: str, ratio: tuple[int, ...], count: int) -> Cell:
    return Cell(system, count, ("3B", "7B", "13B"), ratio)
