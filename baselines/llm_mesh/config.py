"""Constants of LLM-Mesh."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.llm_mesh.bin_packing import Packing
from serving_gym.baselines.policy import Constants, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.sharing import TokenScheduler


@dataclass(frozen=True)
class LLMMeshConfig(Constants):
    """Constants of `LLMMeshPolicy`, and its parts, each of which can be switched off (figure 13).

    Attributes:
        watermark: w, a fraction. Source: ours; the paper gives none. Between 0 and 1 the share of requests that keep
            both promises moves by less than half a point (functions_fitted, validation split).
        overestimate: By how much iterations are overestimated, a fraction. Source: section 5.3.
        min_total_tokens: L_min, tokens, no more than a model's longest sequence. Source: section 6.1 ("the maximum
            sentence length in practice") with the length that section 5.2 gives as its example.
        max_batch: B_max, to which decode iterations are sampled. Source: section 5.2's example.
        keep_alive_s: After which an idle instance is recycled, seconds. Source: section 8.1.
        token_scheduler: Which instance computes next. Source: section 5.1.
        packing: Which instance or node is tried first. Source: section 7.2.
        use_cpu: Whether CPU nodes are used. Source: figure 13.
        cpu_first: Whether they come before GPU nodes; else kinds are alike. Source: section 8.1.
        sharing: Whether instances share nodes. Source: figure 13.
        shadow_validation: Whether a request must pass it. Source: section 5.3.
        preemption: Whether instances preempt neighbours. Source: section 7.1.
        compromise: Whether M_require will do where M_recommend cannot be had. Source: section 6.4.
        serve_late: Whether a request whose next token is late already is placed where it makes no other late. Source:
            ours; by the text a request is accepted only in time, and those that cannot be are dropped.
    """

    watermark: float = tunable(0.2, 0.0, 1.0)
    overestimate: float = tunable(0.10, 0.0, 0.5)
    min_total_tokens: float = tunable(4096.0, 512, 8192, log=True)
    max_batch: int = 256
    keep_alive_s: float = tunable(1.0, 0.1, 60.0, log=True)
    token_scheduler: str = "shortest_headroom"
    packing: str = "bin_packing"
    use_cpu: bool = True
    cpu_first: bool = True
    sharing: bool = True
    shadow_validation: bool = True
    preemption: bool = True
    compromise: bool = True
    serve_late: bool = False

    def __post_init__(self) -> None:
        check_not_negative(self, "watermark", "overestimate", "keep_alive_s")
        check_at_least(self, 1, "min_total_tokens")
        check_at_least(self, 2, "max_batch")
        for name, kind in (("token_scheduler", TokenScheduler), ("packing", Packing)):
            check_choice(name, getattr(self, name), [str(choice) for choice in kind])
