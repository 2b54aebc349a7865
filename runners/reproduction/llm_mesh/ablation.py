"""Section 8.3, figure 13: LLM-Mesh without each of its parts, on 64 models of 7B."""

from __future__ import annotations

from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.claims import Claim, above, near, shown
from serving_gym.runners.reproduction.llm_mesh.study import MESH, OTHER_FUNCTIONS, Cell, Study, make_claim
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
    return rows


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
