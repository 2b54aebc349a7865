"""Constants of LLM-Mesh."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from serving_gym.baselines.llm_mesh.bin_packing import Packing
from serving_gym.baselines.llm_mesh.keep_alive import KeepAlive, Late, Reclaim
from serving_gym.baselines.policy import Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.sharing import TokenScheduler

_WORDS: dict[str, type[StrEnum]] = {
    "token_scheduler": TokenScheduler,
    "packing": Packing,
    "keep_alive": KeepAlive,
    "reclaim": Reclaim,
    "late": Late,
}


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
        keep_alive: Where the time after which an idle instance is recycled comes from: "setting", what the cluster has
            for all systems ("the keep-alive threshold is set to 1 s", section 8.1), or "fixed".
        keep_alive_s: That time, seconds, where it is fixed. Source: section 8.1.
        reclaim: Which idle instances give way to a new one: one of `keep_alive.Reclaim`. Source: ours; "none" is what
            the text says where the keep-alive time is short.
        half_life_s: In which a request for a model is half forgotten; of "least_asked". Source: ours.
        late: Which requests are served although their first token cannot come in time: one of `keep_alive.Late`.
            "drop" is the text's; where a load alone takes longer than the TTFT promise, it would serve no model ever.
        token_scheduler: Which instance computes next. Source: section 5.1.
        packing: Which instance or node is tried first. Source: section 7.2.
        use_cpu: Whether CPU nodes are used. Source: figure 13.
        cpu_first: Whether they come before GPU nodes; else kinds are alike. Source: section 8.1.
        sharing: Whether instances share nodes. Source: figure 13.
        shadow_validation: Whether a request must pass it. Source: section 5.3.
        preemption: Whether instances preempt neighbours. Source: section 7.1.
        compromise: Whether M_require will do where M_recommend cannot be had. Source: section 6.4.
    """

    watermark: float = tunable(0.2, 0.0, 1.0)
    overestimate: float = tunable(0.10, 0.0, 0.5)
    min_total_tokens: float = tunable(4096.0, 512, 8192, log=True)
    max_batch: int = 256
    keep_alive: str = tunable_choice(KeepAlive.SETTING.value, KeepAlive.FIXED.value)
    keep_alive_s: float = tunable(1.0, 0.1, 7200.0, log=True)
    reclaim: str = tunable_choice(Reclaim.LEAST_ASKED.value, Reclaim.LONGEST_IDLE.value, Reclaim.NONE.value)
    half_life_s: float = tunable(600.0, 10.0, 7200.0, log=True)
    late: str = tunable_choice(Late.COLD_START.value, Late.SERVE.value, Late.DROP.value)
    token_scheduler: str = "shortest_headroom"
    packing: str = tunable_choice(Packing.BIN_PACKING.value, Packing.SPREAD.value)
    use_cpu: bool = True
    cpu_first: bool = tunable_choice(True, False)
    sharing: bool = True
    shadow_validation: bool = True
    preemption: bool = True
    compromise: bool = True

    def __post_init__(self) -> None:
        check_not_negative(self, "watermark", "overestimate", "keep_alive_s")
        check_positive(self, "half_life_s", finite=True)
        check_at_least(self, 1, "min_total_tokens")
        check_at_least(self, 2, "max_batch")
        for name, kind in _WORDS.items():
            check_choice(name, getattr(self, name), [str(choice) for choice in kind])
