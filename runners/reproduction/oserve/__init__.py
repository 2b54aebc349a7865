"""OServe's evaluation (Jiang et al., 2026) beside ours.

    examples.py      section 4.2 and Appendix C: worked examples
    searching.py     section 6.4: Algorithm 1 against exhaustive search, and how long it takes
    forecasting.py   sections 5.1 and 6.3: errors of forecasters
    switching.py     section 6.3: an ad hoc switch against a reload
    serving.py       section 6.3, Tables 1 and 2: speedup over vLLM (static)

The paper's two traces and its engine are not public; `study.py` says what stands for them.
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.oserve import examples, forecasting, searching, serving, switching
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Headline numbers of the paper, as far as it goes, beside ours."""
    parts = (searching, forecasting, switching, serving)
    with progress_bar(sum(part.num_steps(config) for part in parts), "reproduce oserve", "step") as bar:
        return [*examples.claims(), *(claim for part in parts for claim in part.claims(config, bar))]
