"""Section 8.2, figure 12: SLO-compliant requests, nodes in use, throughput of nodes, and the distribution of TTFT."""

from __future__ import annotations

import numpy as np

from serving_gym.runners.reproduction.claims import INPUT, Claim, Rule, at_least, at_most, near, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh.study import (
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
from serving_gym.runners.reproduction.measures import over, percentile

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
_HARDLY_ANY = 0.05  # nodes, that the text's 0 may be
THROUGHPUT = {"cpu": (0.06, 0.52), "gpu": (-0.06, 0.86)}  # gains over sllm+cpu, lowest and highest


def cells(config: ReproduceConfig) -> list[Cell]:
    """What is run: every row at the paper's load, and those under high load with the trace as it is."""
    rows = grid(config)
    loaded = [] if config.quick else [row for row in rows if row[0] == HIGH_LOAD]
    return [*cells_of(SYSTEMS, rows), *cells_of(SYSTEMS, loaded, squeeze=1.0)]


def claims(study: Study) -> list[Claim]:
    """All of figure 12 that the text speaks of."""
    return [
        *_gains(study),
        *_nodes(study),
        *_savings(study),
        *_throughput(study),
        *_ttft(study),
        *_largest(study),
    ]


def _gains(study: Study) -> list[Claim]:
    rows = []
    for measure, meaning in MEASURES.items():
        for system, (low, high) in GAIN.items():
            rows += _gains_over(study, system, (low, high), measure, meaning)
            if not study.config.quick:
                rows += _gains_over(study, system, (None, None), measure, meaning, squeeze=1.0)
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
    study: Study,
    system: str,
    stated: tuple[float | None, float | None],
    measure: str,
    meaning: str,
    squeeze: float | None = None,
) -> list[Claim]:
    """Least and most gain over the sizes of models; without stated ones they are shown."""
    gains = {}
    for size in _sizes(study):
        cells = [Cell(name, HIGH_LOAD, (size,), squeeze=squeeze) for name in (MESH, system)]
        mesh, other = (study.total(cell, measure) for cell in cells)
        gains[size] = over(mesh, other) - 1.0
    each = ", ".join(f"{size} {gain:.0%}" for size, gain in gains.items())
    load = "under high load" if squeeze is None else "with the trace as it is"
    rows = []
    for which, paper, ours in zip(
        ("least", "most"), stated, (min(gains.values()), max(gains.values())), strict=True
    ):
        rows.append(
            make_claim(
                "8.2",
                f"SLO-compliant requests ({meaning}) more than {system}'s {load}, the {which} over sizes",
                paper,
                ours,
                "ratio",
                shown("another load than the paper's") if paper is None else at_least(paper),
                note=f"{HIGH_LOAD} models of one size: {each}. {study.note}",
            )
        )
    return rows


def _sizes(study: Study) -> list[str]:
    return [size for count, size in grid(study.config) if count == HIGH_LOAD]


def _nodes(study: Study) -> list[Claim]:
    rows = []
    for count, size in grid(study.config):
        for system in SYSTEMS:
            for kind in ("cpu", "gpu"):
                if system == SLLM and kind == "cpu":
                    continue
                stated = NODES.get((count, size, system, kind))
                rows.append(
                    make_claim(
                        "8.2, figure 12",
                        f"{count} x {size}, {system}: {kind.upper()} nodes in use",
                        stated,
                        study.nodes(Cell(system, count, (size,)), kind),
                        "nodes",
                        _node_rule(count, size, system, stated),
                        note=f"{OTHER_FUNCTIONS.capitalize()}. {study.note}",
                    )
                )
    return rows


def _node_rule(count: int, size: str, system: str, stated: float | None) -> Rule:
    if stated is None:
        return shown("the text gives no figure")
    if (count, size, system) == (32, "3B", SLLM):
        return shown("the load was chosen by this figure")
    return near(stated) if stated else at_most(_HARDLY_ANY, 0.0)


def _savings(study: Study) -> list[Claim]:
    """What the systems use of one another's GPU nodes."""
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
                note=f"{OTHER_FUNCTIONS.capitalize()}. {study.note}",
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
                    note=f"{OTHER_FUNCTIONS.capitalize()}. {study.note}",
                )
            )
    return rows


def _largest(study: Study) -> list[Claim]:
    """How much of a seed one function is."""
    rows = []
    for count in dict.fromkeys(count for count, _ in grid(study.config)):
        size = next(size for other, size in grid(study.config) if other == count)
        shares = [outcome.largest_share for outcome in study.outcomes(Cell(MESH, count, (size,)))]
        rows.append(
            make_claim(
                "8.1",
                f"{count} models: share of requests that one function has, the most over seeds",
                None,
                max(shares),
                "share",
                shown("an input"),
                note="Of each seed: " + ", ".join(f"{share:.0%}" for share in shares) + ".",
                kind=INPUT,
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
                    at_least(1.0, 0.0, most=np.inf),
                    note=f"{shares[0]:.1%} and {shares[1]:.1%}; the curves flatten there. {study.note}",
                ),
                make_claim(
                    "8.2, figure 12",
                    f"{where}: P95 TTFT of the requests served, over {system}'s",
                    None,
                    over(tails[0], tails[1]),
                    "ratio",
                    at_most(1.0, 0.0, least=0.0),
                    note=f"{tails[0]:.2f} and {tails[1]:.2f} s. {study.note}",
                ),
            ]
    return rows
