"""Section 8.3, figure 13: LLM-Mesh without each of its parts, on 64 models of 7B."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.interface.metrics import FloatArray
from serving_gym.runners.reproduction.claims import Claim, above, at_most, near, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh.study import MESH, OTHER_FUNCTIONS, Cell, Study, make_claim
from serving_gym.runners.reproduction.llm_mesh.timeline import Timeline
from serving_gym.runners.reproduction.measures import over

DISABLED = {  # of figure 13, by the text
    "llm_mesh_no_cpu": "CPU nodes",
    "llm_mesh_no_sharing": "sharing",
    "llm_mesh_no_defragmentation": "defragmentation",
}
FURTHER = {  # ours
    "llm_mesh_no_preemption": "proactive defragmentation",
    "llm_mesh_spread": "reactive defragmentation",
    "llm_mesh_no_shadow_validation": "shadow validation",
    "llm_mesh_no_watermark": "the watermark",
    "llm_mesh_no_compromise": "the compromise",
    "llm_mesh_round_robin": "headroom (round robin)",
    "llm_mesh_fcfs": "headroom (first come, first served)",
}
NO_SHARING_ATTAINMENT = 0.89
_RARELY = 0.25  # share of the time
_GPU = 1  # kind of node
_MINUTE_S = 60.0


def cells(config: ReproduceConfig) -> list[Cell]:
    """What is run."""
    return [_cell(name) for name in (MESH, *DISABLED, *({} if config.quick else FURTHER))]


def claims(study: Study) -> list[Claim]:
    """GPU nodes in use and SLO compliance without each part."""
    full = study.nodes(_cell(MESH), "gpu")
    rows = [
        make_claim(
            "8.3, figure 13",
            "SLO compliance without sharing",
            NO_SHARING_ATTAINMENT,
            study.attainment(_cell("llm_mesh_no_sharing")),
            "share",
            near(NO_SHARING_ATTAINMENT),
            note=f"All parts: {study.attainment(_cell(MESH)):.1%}; {OTHER_FUNCTIONS}. {study.note}",
        )
    ]
    for name, part in DISABLED.items():
        nodes = study.nodes(_cell(name), "gpu")
        rows.append(
            make_claim(
                "8.3, figure 13",
                f"GPU nodes in use without {part}, over those with all parts",
                None,
                over(nodes, full),
                "x",
                above(),
                note=f"{nodes:.2f} and {full:.2f} nodes; the text says significantly more. {study.note}",
            )
        )
        if name != "llm_mesh_no_sharing":
            rows.append(_attainment(study, name, part))
    if not study.config.quick:
        rows += [_attainment(study, name, part) for name, part in FURTHER.items()]
    return [*rows, *_timelines(study)]


def _timelines(study: Study) -> list[Claim]:
    """Figure 13's timelines of GPU nodes in use, as far as the text describes them."""
    full, no_cpu = (_exhausted(study, name) for name in (MESH, "llm_mesh_no_cpu"))
    surge = {name: _after_surges(study, name) for name in (MESH, "llm_mesh_no_defragmentation")}
    return [
        make_claim(
            "8.3, figure 13",
            "share of the time in which all four GPU nodes are in use",
            None,
            full,
            "share",
            at_most(_RARELY, 0.0, least=0.0),
            note=f'"Rarely exhausts all four GPU nodes", read as a quarter of the time. {study.note}',
        ),
        make_claim(
            "8.3, figure 13",
            "share of the time in which all four GPU nodes are in use without CPU nodes",
            None,
            no_cpu,
            "share",
            above(_RARELY),
            note=f'"Consistently high"; {full:.0%} with all parts. {study.note}',
        ),
        make_claim(
            "8.3, figure 13",
            "GPU nodes in use in the minute after surges without defragmentation, over those with all parts",
            None,
            over(*(surge[name] for name in ("llm_mesh_no_defragmentation", MESH))),
            "x",
            above(),
            note=f"After the tenth of the minutes with most arrivals; {surge[MESH]:.2f} nodes with all parts. "
            f"{study.note}",
        ),
    ]


def _gpu_timelines(study: Study, name: str) -> list[tuple[Timeline, FloatArray, FloatArray]]:
    """Of each seed: the timeline, GPU nodes in use, and when requests arrive, s."""
    return [
        (one.timeline, one.timeline.nodes(_GPU), one.records.arrival_s) for one in study.outcomes(_cell(name))
    ]


def _exhausted(study: Study, name: str) -> float:
    """Share of the time in which no GPU node is free."""
    found = [line.mean((nodes >= 4).astype(float)) for line, nodes, _ in _gpu_timelines(study, name)]
    return float(np.mean(found))


def _after_surges(study: Study, name: str) -> float:
    """GPU nodes in use in the minutes that follow those with most arrivals."""
    found = []
    for line, nodes, arrival_s in _gpu_timelines(study, name):
        arrived = np.bincount((arrival_s // _MINUTE_S).astype(int))
        surges = np.flatnonzero(arrived >= np.quantile(arrived, 0.9))
        after = np.isin(line.begin_s // _MINUTE_S, surges + 1)
        found.append(line.mean(nodes, after))
    return float(np.nanmean(found))


def _attainment(study: Study, name: str, part: str) -> Claim:
    cell = _cell(name)
    nodes = ", ".join(f"{study.nodes(cell, kind):.2f} {kind.upper()}" for kind in ("cpu", "gpu"))
    by_headroom = f"By headroom {study.attainment(cell, 'last_in_time'):.1%}"
    return make_claim(
        "8.3, figure 13",
        f"SLO compliance without {part}",
        None,
        study.attainment(cell),
        "share",
        shown("the text gives no figure"),
        note=f"{by_headroom}. Nodes in use: {nodes}. All parts: {study.attainment(_cell(MESH)):.1%}. {study.note}",
    )


def _cell(name: str) -> Cell:
    return Cell(name, 64, ("7B",))
