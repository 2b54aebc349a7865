"""Section 6.3: how long a switch takes, ad hoc and by reloading, for a model of 70B."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from serving_gym.calibration.models import get_model
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import place
from serving_gym.envs.machines.shards import model_shards
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.machines.switch_plan import greedy_switch_plan
from serving_gym.envs.machines.transfer import naive_reload_s, transfer_s
from serving_gym.runners.reproduction.claims import INPUT, Claim, Rule, at_least, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.oserve.study import make_claim

MODEL = "llama-2-70b"
# Table 3, trace 1: what OServe deploys on 16 GPUs (of OPT-66B; Llama-2-70B with TP=3 would not divide its heads).
LAYOUTS: tuple[dict[ReplicaKind, int], ...] = (
    {ReplicaKind(4, 2): 1, ReplicaKind(2, 2): 1, ReplicaKind(2): 2},
    {ReplicaKind(1, 4): 1, ReplicaKind(2, 2): 3},
    {ReplicaKind(4, 2): 1, ReplicaKind(2, 2): 2},
    {ReplicaKind(2): 8},
    {ReplicaKind(8): 2},
)


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar."""
    return 1


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """The longest of all switches between some layouts, and the reload of the same."""
    spec, model = DeploymentSpec(model=MODEL), get_model(MODEL)
    placed = [place(spec.cluster, kinds) for kinds in LAYOUTS]
    pairs = list(permutations(placed, 2))
    bytes_s = max(
        transfer_s(spec.cluster, greedy_switch_plan(spec.cluster, model_shards(model, before, after)))
        for before, after in pairs
    )
    reads_s = max(
        naive_reload_s(model, before, after, spec.storage_bytes_per_s, start_fixed_s=0.0)
        for before, after in pairs
    )
    bar.update(1)
    note = f"{MODEL}, the longest of {len(pairs)} switches between layouts of Tables 3 and section 6.2 on 16 GPUs."
    fixed = (
        f"{spec.reinit_s:g} s for engines to start are the paper's 10 s less what the bytes take, in both."
    )
    return [
        make_claim(
            "6.3",
            "bytes of an ad hoc switch",
            None,
            bytes_s,
            "s",
            Rule("below 1 s, so that starting engines is nearly all of it", lambda ours: ours < 1.0),
            note=note,
        ),
        make_claim(
            "6.3",
            "ad hoc switch",
            10.0,
            bytes_s + spec.reinit_s,
            "s",
            shown("its fixed part is the paper's own figure"),
            kind=INPUT,
            note=f"{note} {fixed}",
        ),
        make_claim(
            "6.3",
            "reload",
            50.0,
            reads_s + spec.reinit_s,
            "s",
            at_least(50.0, 0.0),
            note=f"{note} Weights from storage at the measured rate of safetensors; {fixed}",
        ),
    ]
