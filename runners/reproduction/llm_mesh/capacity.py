"""Section 8.2, figure 12: SLO-compliant requests, nodes in use, throughput of nodes, and the distribution of TTFT."""

from __future__ import annotations

import numpy as np

from runners.reproduction.claims import Claim, Rule, at_least, at_most, shown
from runners.reproduction.llm_mesh.study import (
    COUNTS,
    MESH,
    OTHER_FUNCTIONS,
    SLLM,
    SLLM_CPU,
    SYSTEMS,
    Cell,
    Study,
    cells_of,
    grid,
    make_claim,
)
from runners.reproduction.measures import over, percentile
from runners.schema import ReproduceConfig

HIGH_LOAD = COUNTS[-1]
GAIN = {SLLM: (0.91, 1.59), SLLM_CPU: (0.44, 0.63)}  # lowest and highest, under high loads
MEASURES = {
    "good": "TTFT and mean TPOT",
    "last_in_time": "TTFT, and the last token's headroom",  # section 5.2: a violation is a negative headroom
}
NODES = {  # what the text gives of figure 12: nodes of a kind in use
    (32, "3B", MESH, "cpu"): 3.0,
    (32, "3B", MESH, "gpu"): 0.0,
    (32, "3B", SLLM, "gpu"): 3.2,
    (64, "7B", SLLM, "gpu"): 3.9,
    (64, "7B", SLLM_CPU, "gpu"): 3.5,
    (64, "7B", MESH, "gpu"): 2.5,
    (128, "13B", SLLM, "gpu"): 4.0,
    (128, "13B", SLLM_CPU, "gpu"): 4.0,
    (128, "13B", MESH, "gpu"): 4.0,
}
THROUGHPUT = {"cpu": (0.06, 0.52), "gpu": (-0.06, 0.86)}  # gains over sllm+cpu, lowest and highest
_LIGHTER = (
    "The functions drawn here load the nodes less, or in shorter bursts, than the paper's (see the nodes in use), so "
    "that the other systems have less to lose."
)


def cells(config: ReproduceConfig) -> list[Cell]:
    """What is run."""
    return cells_of(SYSTEMS, grid(config))


def claims(study: Study) -> list[Claim]:
    """All of figure 12 that the text speaks of."""
    return [*_gains(study), *_nodes(study), *_savings(study), *_throughput(study), *_ttft(study)]


def _gains(study: Study) -> list[Claim]:
    rows = []
    for measure, meaning in MEASURES.items():
        for system, (low, high) in GAIN.items():
            rows += _gains_over(study, system, low, high, measure, meaning)
    for size in _sizes(study):
        for system in SYSTEMS:
            cell = Cell(system, HIGH_LOAD, (size,))
            rows.append(
                make_claim(
                    "8.2",
                    f"{HIGH_LOAD} x {size}, {system}: share of requests that meet both SLOs",
                    None,
                    study.attainment(cell),
                    "share",
                    shown("the text gives gains alone"),
                    note=f"By headroom {study.attainment(cell, 'last_in_time'):.1%}. {study.note}",
                )
            )
    return rows


def _gains_over(
    study: Study, system: str, low: float, high: float, measure: str, meaning: str
) -> list[Claim]:
    gains = {}
    for size in _sizes(study):
        mesh, other = (study.total(Cell(name, HIGH_LOAD, (size,)), measure) for name in (MESH, system))
        gains[size] = over(mesh, other) - 1.0
    each = ", ".join(f"{size} {gain:.0%}" for size, gain in gains.items())
    found = (("least", low, min(gains.values())), ("most", high, max(gains.values())))
    return [
        make_claim(
            "8.2",
            f"SLO-compliant requests ({meaning}) more than {system}'s under high load, the {which} over sizes",
            stated,
            ours,
            "ratio",
            at_least(stated),
            note=f"{HIGH_LOAD} models of one size: {each}. {study.note}",
            beyond=_LIGHTER,
        )
        for which, stated, ours in found
    ]


def _sizes(study: Study) -> list[str]:
    return [size for count, size in grid(study.config) if count == HIGH_LOAD]


def _nodes(study: Study) -> list[Claim]:
    rows = []
    stated: float | None
    for count, size in grid(study.config):
        for system in SYSTEMS:
            for kind in ("cpu", "gpu"):
                stated = NODES.get((count, size, system, kind))
                if stated is None and system == SLLM and kind == "cpu":
                    continue
                rows.append(
                    make_claim(
                        "8.2, figure 12",
                        f"{count} x {size}, {system}: {kind.upper()} nodes in use",
                        stated,
                        study.nodes(Cell(system, count, (size,)), kind),
                        "nodes",
                        shown(OTHER_FUNCTIONS),
                        note="" if kind == "gpu" and system == SLLM else study.note,
                    )
                )
    return rows


def _savings(study: Study) -> list[Claim]:
    """What the systems use of one another's GPU nodes: the comparison that survives another load."""
    rows = []
    mesh = study.nodes(Cell(MESH, 64, ("7B",)), "gpu")
    for system in (SLLM_CPU, SLLM):
        stated = NODES[64, "7B", MESH, "gpu"] / NODES[64, "7B", system, "gpu"]
        other = study.nodes(Cell(system, 64, ("7B",)), "gpu")
        rows.append(
            make_claim(
                "8.2, figure 12b",
                f"64 x 7B: GPU nodes in use over {system}'s",
                stated,
                over(mesh, other),
                "ratio",
                at_most(stated),
                note=f"The load differs: {OTHER_FUNCTIONS}. {study.note}",
            )
        )
    return rows


def _throughput(study: Study) -> list[Claim]:
    rows = []
    for kind, (low, high) in THROUGHPUT.items():
        gains = []
        for count, size in grid(study.config):
            mesh, other = (
                study.tokens_per_s(Cell(system, count, (size,)), kind) for system in (MESH, SLLM_CPU)
            )
            gains.append(over(mesh, other) - 1.0 if other > 0 and mesh > 0 else float("nan"))
        rule: Rule
        for which, stated, ours, rule in (
            (
                "least",
                low,
                float(np.nanmin(gains)),
                shown("the least is where LLM-Mesh hardly uses such nodes"),
            ),
            ("most", high, float(np.nanmax(gains)), at_least(high)),
        ):
            rows.append(
                make_claim(
                    "8.2, figure 12",
                    f"output tokens a second of a {kind.upper()} node more than sllm_cpu's, the {which}",
                    stated,
                    ours,
                    "ratio",
                    rule,
                    note=f"The load differs: {OTHER_FUNCTIONS}. {study.note}",
                )
            )
    return rows


def _ttft(study: Study) -> list[Claim]:
    rows = []
    for count, size in grid(study.config):
        if count != HIGH_LOAD:
            continue
        mesh = study.ttft_s(Cell(MESH, count, (size,)))
        for system in (SLLM_CPU, SLLM):
            other = study.ttft_s(Cell(system, count, (size,)))
            shares = [float(np.isfinite(ttft_s).mean()) for ttft_s in (mesh, other)]
            tails = [percentile(ttft_s[np.isfinite(ttft_s)], 95) for ttft_s in (mesh, other)]
            where = f"{count} x {size}"
            rows += [
                make_claim(
                    "8.2, figure 12",
                    f"{where}: share of requests that are served at all, over {system}'s",
                    None,
                    over(shares[0], shares[1]),
                    "ratio",
                    at_least(1.0, 0.0),
                    note=f"{shares[0]:.1%} and {shares[1]:.1%}; the curves flatten there. {study.note}",
                    beyond="LLM-Mesh drops a request whose first token is late already; the others serve it late as "
                    "long as its client waits, which is the environment's patience, not the paper's.",
                ),
                make_claim(
                    "8.2, figure 12",
                    f"{where}: P95 TTFT of the requests served, over {system}'s",
                    None,
                    over(tails[0], tails[1]),
                    "ratio",
                    at_most(1.0, 0.0),
                    note=f"{tails[0]:.2f} and {tails[1]:.2f} s. {study.note}",
                ),
            ]
    return rows
