"""LLM-Mesh's evaluation (Xu et al., 2025) beside ours.

    examples.py   sections 3.1, 5 and 6: what follows from an equation, a calibration or the CPU roofline alone
    footprint.py  section 3.2, figure 4: memory of one model
    capacity.py   section 8.2, figure 12: SLO-compliant requests, nodes in use, throughput of nodes, TTFT
    ablation.py   section 8.3, figure 13: without each part
    mixes.py      section 8.4, figure 14: sizes of models together

`study.py` says what is the paper's and what is ours.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh import ablation, capacity, examples, footprint, mixes
from serving_gym.runners.reproduction.llm_mesh.study import Study, num_steps
from serving_gym.runners.reproduction.parts import Evaluation

PARTS = {"footprint": footprint, "capacity": capacity, "ablation": ablation, "mixes": mixes}


def evaluation(config: ReproduceConfig, bar: Any) -> Evaluation:
    """Headline numbers of the paper, as far as it goes; parts share cells."""
    study = Study(config, bar)

    def episodes(names: Collection[str]) -> int:
        cells = [cell for name in names if name in PARTS for cell in PARTS[name].cells(config)]
        return num_steps(config, cells)

    parts = {name: partial(part.claims, study) for name, part in PARTS.items()}
    return Evaluation({"examples": examples.claims, **parts}, episodes)
