"""OServe's evaluation (Jiang et al., 2026) beside ours.

    examples.py      section 4.2 and Appendix C: worked examples
    searching.py     section 6.4: Algorithm 1 against exhaustive search, how long it takes; section 4.2: maximum flow
    forecasting.py   sections 5.1 and 6.3: errors of forecasters
    switching.py     section 6.3: an ad hoc switch against a reload
    serving.py       section 6.3, Tables 1 and 2: speedup over vLLM (static)
    systems.py       section 6.2, Figures 10 to 13: gains over both vLLM, by model and number of GPUs; 6.3: by predictor
    ablation.py      section 6.3, Figures 14 and 15: what each part of OServe brings
    appendices.py    G to J: deployments over time, Llumnix, Dynamo, TTFT and TBT, homogeneous workloads
    choices.py       what the paper leaves open
    episodes.py      what the last four are made from

The paper's two traces and its engine are not public; `study.py` says what stands for them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.oserve import (
    ablation,
    appendices,
    examples,
    forecasting,
    searching,
    serving,
    switching,
    systems,
)
from serving_gym.runners.reproduction.parts import Evaluation, total

PARTS = {
    "searching": searching,
    "forecasting": forecasting,
    "switching": switching,
    "serving": serving,
    "systems": systems,
    "ablation": ablation,
    "appendices": appendices,
}


def evaluation(config: ReproduceConfig, bar: Any) -> Evaluation:
    """Every figure of the paper that has a number; `quick` leaves out the parts of rivals and of single changes."""
    parts = {name: partial(part.claims, config, bar) for name, part in PARTS.items()}
    steps = {name: part.num_steps(config) for name, part in PARTS.items()}
    quick = ("examples", *(name for name in PARTS if name not in ("ablation", "appendices")))
    return Evaluation({"examples": examples.claims, **parts}, partial(total, steps), quick)
