"""`max_model_len`: a prompt that leaves no room is refused, and an answer ends where the limit is reached."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec, Route
from serving_gym.envs.interface.metrics import (
    FINISHED,
    OUTCOME_NAMES,
    REASON_NAMES,
    REFUSED,
    RequestRecords,
    summarise,
)
from serving_gym.envs.interface.scaling import MachineSpec, QueueSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import place
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator
from serving_gym.envs.simulator.deployment.simulator import DeploymentSimulator
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.streams import WholeStream

SLOS = (SLO(1.0, 0.1),)
SMALL = ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=16)
CONTEXT = 131_072  # of Llama-3.1-8B
FIVE = Workload(  # within; at the limit; beyond it by one; no room; beyond
    arrival_s=np.arange(5.0),
    input_tokens=np.array([100, 100, 100, 1000, 1001]),
    output_tokens=np.array([64, 900, 901, 1, 64]),
    max_output_tokens=np.array([2000, 900, 901, 5, 64]),
)


def check(records: RequestRecords, served: tuple[int, ...] = (64, 900, 900)) -> None:
    """What becomes of `FIVE` where requests may have 1,000 tokens."""
    assert records.outcome.tolist() == [FINISHED] * 3 + [REFUSED] * 2
    assert records.generated_tokens.tolist() == [*served, 0, 0]
    reasons = [REASON_NAMES[code] for code in records.reason]
    assert reasons == ["stop", "stop", "length", *["prompt longer than max_model_len"] * 2]
    assert records.output_tokens.tolist() == [64, 900, 901, 1, 64]
    summary = summarise(records, {"standard": SLOS[0]}, ("standard",), 60.0)
    assert (summary["cut_at_max_model_len"], summary["prompt_beyond_max_model_len"]) == (1, 2)
    detailed = records.to_vllm_json()
    assert detailed["errors"] == ["", "", "", *["prompt longer than max_model_len"] * 2]
    assert detailed["finish_reasons"] == ["stop", "stop", "length", "", ""]


def run(simulator: FleetSimulator | Simulator, workload: Workload = FIVE) -> RequestRecords:
    simulator.reset(workload)
    simulator.run_to_completion()
    return simulator.results()


@pytest.mark.parametrize(
    "spec",
    [
        FleetSpec((GroupSpec(SMALL, 2),), max_model_len=1000, engine=""),
        FleetSpec((GroupSpec(dataclasses.replace(SMALL, max_model_len=1000), 2),), max_model_len=5000, engine=""),
        FleetSpec((GroupSpec(dataclasses.replace(SMALL, kv_blocks=125, block_size=8), 1),), engine=""),
        FleetSpec(
            (GroupSpec(dataclasses.replace(SMALL, max_num_batched_tokens=1000), 1),),
            chunked_prefill=False,
            engine="",
        ),
        FleetSpec(
            tuple(GroupSpec(dataclasses.replace(SMALL, role=role), 1) for role in ("prefill", "decode")),
            max_model_len=1000,
            engine="",
        ),
    ],
    ids=["fleet", "its replicas", "its KV pool", "no chunked prefill", "prefill and decode workers"],
)  # fmt: skip
def test_a_fleet(spec: FleetSpec) -> None:
    check(run(FleetSimulator(spec, SLOS)))


def test_a_node() -> None:
    spec = ClusterSpec(
        model="llama-3.1-8b", gpu="H100", num_gpus=2, router="jsq", max_model_len=1000, engine=""
    )
    check(run(Simulator(spec, SLOS)))


def test_a_cluster_cut_into_replicas() -> None:
    spec = DeploymentSpec(
        model="llama-3.1-8b",
        num_machines=1,
        gpus_per_machine=2,
        max_model_len=1000,
        engine="vllm-0.15",
        front_end="none",
    )
    simulator = DeploymentSimulator(spec, SLOS)
    simulator.reset(FIVE)
    assert simulator.deploy(place(spec.cluster, {ReplicaKind(1): 2}), np.ones((2, 1))).accepted
    simulator.run_to_completion()
    check(simulator.results())


def test_a_fleet_that_is_scaled() -> None:
    spec = FleetSpec((GroupSpec(SMALL, 1, 2),), max_model_len=1000, engine="")
    simulator = AutoscalingSimulator(spec, SLOS, MachineSpec(), QueueSpec(hold=False), (True,))
    simulator.open(
        WholeStream(FIVE, FIVE.head(1), 0.0, 1e6),
        0,
        (5.0, 12),
        (60.0, 5, 100),
        PredictionSpec("oracle"),
        True,
    )
    while not simulator.empty:
        simulator.advance(simulator.now_s + 7.0)
    check(simulator.results())


def test_the_models_own_context_where_nothing_is_set() -> None:
    """The third request of a trace asks for more than Llama-3.1-8B can have; its declared cap is all the trace's."""
    workload = Workload(
        arrival_s=np.arange(4.0),
        input_tokens=np.array([512, 1_000_000, 512, 512]),
        output_tokens=np.array([64, 64, 200_000, 64]),
    )
    records = run(FleetSimulator(FleetSpec((GroupSpec(SMALL, 2),), engine=""), SLOS), workload)
    assert [OUTCOME_NAMES[code] for code in records.outcome] == [
        "finished",
        "refused",
        "finished",
        "finished",
    ]
    assert records.generated_tokens.tolist() == [64, 0, CONTEXT - 512, 64]


def test_a_cut_answer_takes_the_time_of_one_that_is_as_long() -> None:
    alone = [Workload(np.zeros(1), np.array([100]), np.array([tokens])) for tokens in (900, 5000)]
    simulator = FleetSimulator(FleetSpec((GroupSpec(SMALL, 1),), max_model_len=1000, engine=""), SLOS)
    whole, cut = (run(simulator, workload) for workload in alone)
    assert whole.finish_s[0] == cut.finish_s[0]
    assert simulator.latency_cost == pytest.approx(whole.ttft_s[0] + whole.tpot_s[0] / 0.1, abs=1e-9)


def test_what_a_policy_sees_is_the_cap_that_is_left() -> None:
    simulator = FleetSimulator(
        FleetSpec((GroupSpec(SMALL, 1),), router="hold", max_model_len=1000, engine=""), SLOS
    )
    simulator.reset(FIVE)
    simulator.advance(0.5)
    assert simulator.world.requests["max_output"][simulator.world.requests["phase"] > 0].tolist() == [900]
    assert simulator.apply(Route(0, 0)).accepted
    simulator.advance(10.0)
    assert simulator.results().generated_tokens[0] == 64


def test_replicas_of_one_endpoint_have_one_limit() -> None:
    groups = (GroupSpec(SMALL, 1), GroupSpec(dataclasses.replace(SMALL, max_model_len=1000), 1))
    with pytest.raises(
        ValueError, match=r"llama-3\.1-8b in local must have one max_model_len, got 1000, 131072"
    ):
        FleetSimulator(FleetSpec(groups, engine=""), SLOS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplicaSpec("llama-3.1-8b", "H100", max_model_len=1),
        lambda: FleetSpec((GroupSpec(SMALL, 1),), max_model_len=0, engine=""),
        lambda: Simulator(ClusterSpec(max_model_len=1, engine=""), SLOS),
        lambda: DeploymentSpec(max_model_len=1, engine="vllm-0.15", front_end="none"),
    ],
)
def test_a_limit_that_leaves_no_room_for_anything(make: object) -> None:
    with pytest.raises(ValueError, match=r"max_model_len must be at least 2"):
        make()  # type: ignore[operator]
