"""What holds for a whole episode: the setting as LLM-Mesh reads it, and what it has learned of output lengths."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving_gym.baselines.llm_mesh.bin_packing import Packing
from serving_gym.baselines.llm_mesh.config import LLMMeshConfig
from serving_gym.baselines.llm_mesh.keep_alive import AskedFor
from serving_gym.baselines.llm_mesh.memory_demand import OutputLengths
from serving_gym.baselines.llm_mesh.node_view import profiles_of, quantify_setting
from serving_gym.envs.interface.sharing import NewInstance, Place, SharingSetting


class Job(NamedTuple):
    """A request to place.

    Attributes:
        row: Of the workload.
        model: What it asks for.
        input_tokens: I.
        generated_tokens: O; more than 0 if it has lost its place.
        deadline_s: When its next token is due.
        tpot_slo_s: TPOT_SLO.
        ttft_slo_s: TTFT_SLO.
    """

    row: int
    model: int
    input_tokens: int
    generated_tokens: int
    deadline_s: float
    tpot_slo_s: float
    ttft_slo_s: float = 0.0

    @classmethod
    def of(cls, row: np.void) -> Job:
        """A row of `SharingState.requests`."""
        generated, tpot_slo_s = int(row["generated_tokens"]), float(row["tpot_slo_s"])
        return cls(
            int(row["index"]),
            int(row["model"]),
            int(row["input_tokens"]),
            generated,
            float(row["arrival_s"]) + float(row["ttft_slo_s"]) + tpot_slo_s * generated,
            tpot_slo_s,
            float(row["ttft_slo_s"]),
        )

    def late(self, now_s: float) -> Job:
        """The request as one that is late already: it cannot become so, but others can."""
        return self._replace(deadline_s=min(self.deadline_s, float(np.nextafter(now_s, -np.inf))))

    @property
    def length(self) -> int:
        """Tokens to prefill."""
        return self.input_tokens + self.generated_tokens


class Fit(NamedTuple):
    """Where a request can go.

    Attributes:
        slot: The instance, or the slot of a new one; negative: a new one whose memory must be given back first.
        node: Its node.
        kv_bytes: KV pool that it is to have.
        new: Whether it is a new one.
    """

    slot: int
    node: int
    kv_bytes: int
    new: bool

    @property
    def place(self) -> Place | None:
        """As a command says it; None: not yet."""
        if self.new:
            return NewInstance(self.node, self.kv_bytes) if self.slot >= 0 else None
        return self.slot


class Mesh:
    """The setting as LLM-Mesh reads it.

    Args:
        config: Constants.
        setting: What is known before an episode.

    Attributes:
        quantification: Iteration times of every size of model on every kind of node.
        profiles: (N, models), its row of each model on each node.
        node_rank: (N,), the lower comes first.
        node_usable: (N,).
        lengths: Output lengths so far.
        asked: How often models have been asked for so far.
    """

    def __init__(self, config: LLMMeshConfig, setting: SharingSetting) -> None:
        self.config, self.setting = config, setting
        self.packing = Packing(config.packing)
        self.quantification = quantify_setting(setting, config.max_batch)
        self.profiles = profiles_of(setting)
        kinds = [setting.kinds[kind] for kind in setting.node_kinds]
        self.node_rank = [int(kind != "cpu" and config.cpu_first) for kind in kinds]
        self.node_usable = [config.use_cpu or kind != "cpu" for kind in kinds]
        self.lengths = OutputLengths(setting.mean_output_tokens)
        self.asked = AskedFor(len(setting.models), config.half_life_s)
        self._kinds = sorted(
            {int(kind) for kind, use in zip(setting.node_kinds, self.node_usable, strict=True) if use}
        )

    def kv_bytes(self, model: int, tokens: float) -> int:
        """Whole blocks that hold some tokens, bytes."""
        block = self.setting.block_tokens
        return -int(-tokens // block) * block * self.setting.models[model].kv_bytes_per_token

    def kv_tokens(self, model: int, kv_bytes: float) -> float:
        """Tokens that a pool holds."""
        return kv_bytes / self.setting.models[model].kv_bytes_per_token

    def least_tokens(self, model: int) -> float:
        """L_min."""
        return min(self.config.min_total_tokens, float(self.setting.models[model].max_tokens))

    def expected_tokens(self, job: Job) -> float:
        """Final length of a request by the optimistic estimate of section 6.1."""
        return job.input_tokens + max(job.generated_tokens, self.lengths.mean(job.model))

    def starts_too_late(self, job: Job) -> bool:
        """Whether a new instance could never have the first token of a request in time, whatever the load."""
        size = self.setting.models[job.model].size
        longer = 1.0 + self.config.overestimate
        needed = (
            float(self.setting.load_s[kind, size])
            + longer * self.quantification.prefill(kind * len(self.setting.sizes) + size, job.length)
            for kind in self._kinds
        )
        return job.generated_tokens == 0 and min(needed, default=0.0) > job.ttft_slo_s
