"""Switches in the simulated cluster: who goes on, drains, moves or is computed again, and how long it takes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from serving_gym.calibration.models import get_model
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.machines.cluster import Cluster, Deployment, ReplicaKind
from serving_gym.envs.machines.placement import place
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.machines.transfer import transfer_s
from serving_gym.envs.simulator.deployment.plane import Phase, weight_plan
from serving_gym.envs.simulator.deployment.simulator import DeploymentSimulator
from serving_gym.envs.workload.schema import Workload

SPEC = DeploymentSpec(
    model="llama-3.1-8b", num_machines=1, gpus_per_machine=4, reinit_s=2.0, drain_below_tokens=1000
)
SLOS = (SLO(5.0, 0.1),)
FOUR = place(SPEC.cluster, {ReplicaKind(1): 4})
TWO_AND_ONES = place(SPEC.cluster, {ReplicaKind(2): 1, ReplicaKind(1): 2}, FOUR)


def requests(*rows: tuple[float, int, int]) -> Workload:
    """Requests that arrive, have a prompt and get an answer."""
    arrival, prompt, answer = zip(*rows, strict=True)
    return Workload(np.array(arrival, float), np.array(prompt, np.int32), np.array(answer, np.int32))


def simulator(workload: Workload, types=None, num_types: int = 1, **changes) -> DeploymentSimulator:
    sim = DeploymentSimulator(dataclasses.replace(SPEC, **changes), SLOS)
    sim.reset(workload, types, num_types)
    return sim


def even(deployment: Deployment, types: int = 1) -> np.ndarray:
    return np.ones((len(deployment.replicas), types))


def test_requests_go_by_the_shares_of_their_type():
    """Of type 0 three quarters to the first replica and the rest to the second, of type 1 all to the third."""
    count = 80
    types = np.arange(count) % 2
    sim = simulator(requests(*((0.2 * i, 100, 5) for i in range(count))), types, 2)
    shares = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert sim.deploy(FOUR, shares).accepted
    sim.run_to_completion()
    engine = sim.results().engine
    assert np.bincount(engine[types == 0], minlength=4).tolist()[:4] == [30, 10, 0, 0]
    assert np.bincount(engine[types == 1], minlength=4).tolist()[:4] == [0, 0, 40, 0]


def test_without_a_share_in_service_the_least_loaded_replica_serves():
    sim = simulator(requests((0.0, 100, 5), (0.0, 100, 5)))
    sim.deploy(FOUR, np.zeros((4, 1)))
    sim.run_to_completion()
    assert sorted(sim.results().engine.tolist()) == [0, 1]


def test_the_first_deployment_is_free_and_may_be_chosen_anew():
    sim = simulator(requests((0.0, 100, 5)))
    assert sim.deploy(FOUR, even(FOUR)).accepted
    assert sim.deploy(TWO_AND_ONES, even(TWO_AND_ONES)).accepted
    assert sim.plane.switch is None
    assert sim.in_service.all()
    assert len(sim.standing) == 3


def test_a_switch_drains_the_short_moves_the_long_and_leaves_the_others_alone():
    """GPUs 2 and 3 become one replica; those of 0 and 1 go on. Request 0 is long, request 1 short."""
    long, short, beside = (0.0, 4000, 400), (0.0, 50, 60), (0.0, 3000, 500)
    sim = simulator(requests(long, short, beside), np.arange(3), 3)
    sim.deploy(FOUR, np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]))
    alone = sim.fork()
    sim.advance(0.5)
    assert sim.deploy(TWO_AND_ONES, np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])).accepted
    going = [e for e, r in sim.standing.items() if r not in TWO_AND_ONES.replicas]
    assert sim.world.engines["status"][going].tolist() == [EngineStatus.DRAINING] * 2
    switch = sim.plane.switch
    assert [request.index for request in switch.carried] == [0]
    assert switch.phase == Phase.DRAIN
    sim.run_to_completion()
    alone.run_to_completion()
    records, undisturbed = sim.results(), alone.results()
    assert records.finished.all()
    assert records.preemptions.sum() == 0
    assert (records.finish_s[1:] == undisturbed.finish_s[1:]).all()
    # The long one stands still from half a second on until the short one has ended and engines have started.
    drained = records.finish_s[1]
    stood_still = drained + 2.0 - 0.5
    assert records.finish_s[0] - 0.5 > stood_still
    assert records.engine[0] not in undisturbed.engine
    assert (sim.world.engines["used_blocks"] == 0).all()
    assert (sim.world.engines["num_kept"] == 0).all()


def test_a_switch_takes_what_the_bytes_take_and_the_start():
    sim = simulator(requests((0.0, 10, 1), (30.0, 10, 1)))
    sim.deploy(FOUR, even(FOUR))
    sim.advance(10.0)
    sim.deploy(TWO_AND_ONES, even(TWO_AND_ONES))
    bytes_s = transfer_s(SPEC.cluster, weight_plan(SPEC.model, FOUR, TWO_AND_ONES))
    switch = sim.plane.switch
    assert switch.phase == Phase.MOVE  # nothing runs
    assert switch.due_ps == round((10.0 + bytes_s + 2.0) * 1e12)
    sim.advance(10.0 + bytes_s + 1.999)
    assert sim.in_service.tolist() == [False, True, True]
    sim.advance(10.0 + bytes_s + 2.001)
    assert sim.in_service.all()


def test_a_reload_reads_from_storage_and_computes_again():
    sim = simulator(requests((0.0, 2000, 300), (0.0, 100, 300)), storage_bytes_per_s=4e9)
    sim.deploy(FOUR, even(FOUR))
    sim.advance(1.0)
    alone = place(SPEC.cluster, {ReplicaKind(4): 1})
    sim.deploy(alone, even(alone), "reload")
    loading = get_model(SPEC.model).weight_bytes / 4e9
    assert sim.plane.switch.due_ps == round((1.0 + loading + 2.0) * 1e12)
    sim.run_to_completion()
    records = sim.results()
    assert records.preemptions.tolist() == [1, 1]
    assert (records.finish_s > 1.0 + loading + 2.0).all()


def test_what_has_not_drained_in_time_is_computed_again():
    sim = simulator(requests((0.0, 100, 900)), drain_limit_s=1.0)
    sim.deploy(FOUR, even(FOUR))
    sim.advance(0.5)
    both = place(SPEC.cluster, {ReplicaKind(2): 2})
    sim.deploy(both, even(both))
    sim.advance(1.49)
    assert sim.plane.switch.phase == Phase.DRAIN
    sim.advance(1.51)
    assert sim.plane.switch.phase == Phase.MOVE
    sim.run_to_completion()
    records = sim.results()
    assert records.finished.all()
    assert records.preemptions.tolist() == [1]


def test_what_finds_no_room_is_computed_again():
    """One batch place a replica: of two long requests one moves to the only replica that is left."""
    sim = simulator(requests((0.0, 2000, 600), (0.0, 2000, 600)), max_num_seqs=1)
    sim.deploy(FOUR, even(FOUR))
    sim.advance(1.0)
    alone = place(SPEC.cluster, {ReplicaKind(4): 1})
    sim.deploy(alone, even(alone))
    sim.run_to_completion()
    records = sim.results()
    assert records.finished.all()
    assert sorted(records.preemptions.tolist()) == [0, 1]


def test_only_shares_change_at_once_even_during_a_switch():
    sim = simulator(requests(*((0.1 * i, 100, 50) for i in range(100))))
    sim.deploy(FOUR, even(FOUR))
    sim.advance(2.0)
    sim.deploy(TWO_AND_ONES, even(TWO_AND_ONES))
    before = sim.plane.switch
    assert sim.deploy(TWO_AND_ONES, np.array([[0.0], [1.0], [0.0]])).accepted
    assert sim.plane.switch is before
    assert len(sim.plane.operations) == 1
    receipt = sim.deploy(FOUR, even(FOUR))
    assert (receipt.accepted, receipt.reason) == (False, "a switch is under way")


def test_prefill_and_decode_workers():
    spec = dataclasses.replace(SPEC, disaggregation=True)
    kinds = {ReplicaKind(1, 1, "prefill"): 1, ReplicaKind(1, 1, "decode"): 3}
    sim = DeploymentSimulator(spec, SLOS)
    sim.reset(requests(*((0.1 * i, 500, 40) for i in range(40))))
    layout = place(spec.cluster, kinds)
    assert sim.deploy(layout, even(layout)).accepted
    sim.advance(2.0)
    other = place(
        spec.cluster, {ReplicaKind(1, 1, "prefill"): 2, ReplicaKind(1, 1, "decode"): 2}, sim.deployment
    )
    assert sim.deploy(other, even(other)).accepted
    sim.run_to_completion()
    assert sim.results().finished.all()
    assert sim.in_service.all()
    only = place(spec.cluster, {ReplicaKind(1, 1, "prefill"): 4})
    assert "only together" in sim.deploy(only, even(only)).reason


def test_requests_that_no_replica_could_hold_are_refused():
    sim = simulator(requests((0.0, 100, 5), (0.0, 10_000_000, 5)))
    sim.deploy(FOUR, even(FOUR))
    sim.run_to_completion()
    assert sim.results().finished.tolist() == [True, False]


def test_a_prefill_worker_holds_prompts_whatever_the_answers_grow_to_elsewhere():
    """Of four requests one has a longer prompt than it holds; where one may outgrow the decode worker, it is cut."""
    spec = dataclasses.replace(
        SPEC, model="llama-2-70b", disaggregation=True, gpus_per_machine=8, max_model_len=1 << 20
    )
    sim = DeploymentSimulator(spec, SLOS)
    narrow, wide = ReplicaKind(2, 1, "prefill"), ReplicaKind(4, 1, "decode")
    room, most = (sim.factory.capacity_tokens(kind) for kind in (narrow, wide))
    asked = requests((0.0, room - 1, 2), (0.0, room, 2), (0.0, room // 2, 2), (0.0, room // 2, 2))
    sim.reset(dataclasses.replace(asked, max_output_tokens=np.array([room, 2, most, room], np.int32)))
    layout = place(spec.cluster, {narrow: 2, wide: 1})
    assert sim.deploy(layout, even(layout)).accepted
    sim.run_to_completion()
    assert sim.results().finished.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("deployment", "shares", "switch", "words"),
    [
        (FOUR, np.ones((4, 1)), "slow", "switch must be one of ad_hoc, reload"),
        (FOUR, np.ones((3, 1)), "ad_hoc", "shares must be"),
        (FOUR, -np.ones((4, 1)), "ad_hoc", "shares must be"),
        (Deployment(SPEC.cluster), np.ones((0, 1)), "ad_hoc", "needs a replica"),
        (place(Cluster(1, 2), {ReplicaKind(1): 2}), np.ones((2, 1)), "ad_hoc", "another cluster"),
        (place(SPEC.cluster, {ReplicaKind(3): 1}), np.ones((1, 1)), "ad_hoc", "no kind of replica"),
    ],
)
def test_impossible_commands_are_refused_with_a_reason(deployment, shares, switch, words):
    sim = simulator(requests((0.0, 10, 1)))
    receipt = sim.deploy(deployment, shares, switch)
    assert not receipt.accepted
    assert words in receipt.reason
    assert sim.refused_commands == 1


def test_a_random_walk_loses_nothing():
    """Conservation over many switches: every request ends once, and no block is left behind."""
    rng = np.random.default_rng(0)
    rows = [
        (float(t), int(p), int(a))
        for t, p, a in zip(
            np.sort(rng.uniform(0, 60, 600)),
            rng.integers(50, 4000, 600),
            rng.integers(1, 300, 600),
            strict=True,
        )
    ]
    sim = simulator(requests(*rows), rng.integers(0, 3, 600), 3, drain_limit_s=3.0)
    layouts = [
        {ReplicaKind(1): 4},
        {ReplicaKind(2): 2},
        {ReplicaKind(4): 1},
        {ReplicaKind(1, 2): 2},
        {ReplicaKind(2): 1, ReplicaKind(1): 2},
    ]
    for turn in range(12):
        target = place(SPEC.cluster, layouts[int(rng.integers(len(layouts)))], sim.deployment)
        receipt = sim.deploy(
            target, rng.random((len(target.replicas), 3)), ("ad_hoc", "reload")[turn % 5 == 4]
        )
        assert receipt.accepted or receipt.reason == "a switch is under way"
        sim.advance(5.0 * (turn + 1))
    sim.run_to_completion()
    assert sim.results().finished.all()
    assert (sim.results().generated_tokens == [row[2] for row in rows]).all()
    assert (sim.world.engines["used_blocks"] == 0).all()


def test_what_is_preempted_while_its_replica_drains_is_computed_again_elsewhere():
    """The KV of a long request that waits to be moved leaves no room for a short one that drains: it can but wait."""
    sim = simulator(
        requests((0.0, 3000, 900), (0.0, 1000, 900)), memory_utilization=0.2082, drain_below_tokens=2500
    )
    assert 4000 < sim.factory.capacity_tokens(ReplicaKind(1)) < 4900
    sim.deploy(FOUR, np.array([[0.0], [0.0], [1.0], [0.0]]))
    sim.advance(1.0)
    sim.deploy(TWO_AND_ONES, even(TWO_AND_ONES))
    sim.advance(9.9)
    engine = sim.world.engines[2]
    assert (engine["status"], engine["num_running"], engine["num_waiting"]) == (EngineStatus.DRAINING, 0, 1)
    sim.run_to_completion()
    assert sim.results().finished.all()
    assert (sim.world.engines["used_blocks"] == 0).all()
