"""Section 8.4, figure 14: models of three sizes together, from mostly small to mostly large."""

from __future__ import annotations

from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.claims import Claim, at_most, shown
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
NUM_MODELS = 64  # ours: the text gives none
DIFFERENCE = {MESH: 1.2, SLLM_CPU: 0.7}  # GPU nodes from 4:1:1 to 1:1:4


def _ratios(config: ReproduceConfig) -> tuple[tuple[int, int, int], ...]:
    return (RATIOS[0], RATIOS[-1]) if config.quick else RATIOS


def cells(config: ReproduceConfig) -> list[Cell]:
    """What is run."""
    return [_cell(system, ratio) for ratio in _ratios(config) for system in (MESH, SLLM_CPU)]


def claims(study: Study) -> list[Claim]:
    """GPU nodes in use for each mix, and how they change."""
    nodes = {cell: study.nodes(cell, "gpu") for cell in cells(study.config)}
    rows = []
    for ratio in _ratios(study.config):
        mesh, other = (nodes[_cell(system, ratio)] for system in (MESH, SLLM_CPU))
        met = ", ".join(
            f"{system} {study.attainment(_cell(system, ratio)):.1%}" for system in (MESH, SLLM_CPU)
        )
        rows.append(
            make_claim(
                "8.4, figure 14",
                f"3B, 7B and 13B at {':'.join(map(str, ratio))}: GPU nodes in use over sllm_cpu's",
                None,
                over(mesh, other),
                "ratio",
                at_most(1.0, 0.0),
                note=f"{NUM_MODELS} models: {mesh:.2f} and {other:.2f} nodes; both SLOs met: {met}. {study.note}",
            )
        )
    for system, stated in DIFFERENCE.items():
        rows.append(
            make_claim(
                "8.4",
                f"{system}: GPU nodes in use at 1:1:4 more than at 4:1:1",
                stated,
                nodes[_cell(system, RATIOS[-1])] - nodes[_cell(system, RATIOS[0])],
                "nodes",
                shown(OTHER_FUNCTIONS),
                note=study.note,
            )
        )
    return rows


def _cell(system: str, ratio: tuple[int, ...]) -> Cell:
    return Cell(system, NUM_MODELS, ("3B", "7B", "13B"), ratio)
