"""LLM-Mesh's evaluation (Xu et al., 2025) beside ours.

    examples.py   sections 3.1, 5 and 6: what follows from an equation, a calibration or the CPU roofline alone
    capacity.py   section 8.2, figure 12: SLO-compliant requests, nodes in use, throughput of nodes, TTFT
    ablation.py   section 8.3, figure 13: without each part
    mixes.py      section 8.4, figure 14: sizes of models together

`study.py` says what is the paper's and what is ours.
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.llm_mesh import ablation, capacity, examples, mixes
from runners.reproduction.llm_mesh.study import Study, num_steps
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Headline numbers of the paper, as far as it goes, beside ours."""
    parts = (capacity, ablation, mixes)
    cells = [cell for part in parts for cell in part.cells(config)]
    with progress_bar(num_steps(config, cells), "reproduce llm_mesh", "episode") as bar:
        study = Study(config, bar)
        return [*examples.claims(), *(claim for part in parts for claim in part.claims(study))]
