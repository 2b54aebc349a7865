"""What a routing decision does: places, holding, being offered again, the full queue, what is impossible."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import Crash, FleetConfig, GroupSpec, ReplicaSpec, Route
from serving_gym.envs.routing.state import Dispatch
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
TWO = FleetConfig(groups=(GroupSpec(H100, 2),))


@pytest.fixture
def trace(tmp_path):
    """A function that makes an environment of requests given row by row: (arrival, input, output, class)."""

    def make(rows, classes=("standard",), cluster=TWO, models=("",), model_id=None, **arguments):
        arrival, prompts, outputs, class_id = zip(*rows, strict=True)
        workload = Workload(
            arrival_s=np.array(arrival, float),
            input_tokens=np.array(prompts),
            output_tokens=np.array(outputs),
            max_output_tokens=np.full(len(rows), 1000),
            class_id=np.array(class_id),
            classes=classes,
            models=models,
            **({} if model_id is None else {"model_id": np.array(model_id)}),
        )
        path = write_trace(workload, tmp_path / "trace.parquet")
        return make_env(
            "routing",
            workload=WorkloadSpec(name="file", path=str(path), split="all"),
            cluster=cluster,
            prediction=PredictionSpec("oracle"),
            split="all",
            **arguments,
        )

    return make


def rows(*times, output=20):
    return [(time, 100, output, 0) for time in times]


def test_a_request_goes_where_it_is_sent(trace):
    env = trace(rows(0.0, 1.0, 2.0))
    env.reset(seed=0)
    for place in (1, 0, 1):
        _, _, terminated, _, info = env.step(place)
        assert info["num_refused"] == 0
    assert terminated
    assert env.records().engine.tolist() == [1, 0, 1]


def test_one_decision_an_arrival_and_requests_of_one_instant_one_after_another(trace):
    env = trace(rows(0.0, 0.5, 0.5, 0.5, 1.0))
    env.reset(seed=0)
    seen = []
    done = False
    while not done:
        seen.append((env.state.now_s, env.state.request.index))
        _, _, done, _, _ = env.step(0)
    assert seen == [(0.0, 0), (0.5, 1), (0.5, 2), (0.5, 3), (1.0, 4)]


def test_gauges_read_at_every_decision_show_what_was_sent_at_the_same_instant(trace):
    env = trace(rows(0.0, 0.0, 0.0))
    env.reset(seed=0)
    env.step(0)
    assert env.state.engines["num_waiting"].tolist() == [1, 0]
    env.step(0)
    assert env.state.engines["num_waiting"].tolist() == [2, 0]


def test_what_is_held_is_offered_again_after_the_retry_interval(trace):
    env = trace(rows(0.0, 0.95), retry_s=0.3)
    env.reset(seed=0)
    times, held = [], []
    for action in (None, None, 0, 1):
        times.append(round(env.state.now_s, 6))
        held.append(env.state.request.held_before)
        env.step(action)
    assert times == [0.0, 0.3, 0.6, 0.95]
    assert held == [False, True, True, False]
    assert env.records().engine.tolist() == [0, 1]
    assert env.records().first_scheduled_s[0] == pytest.approx(0.6)


def test_a_retry_offers_oldest_first_and_skips_a_class_of_which_one_is_held_again(trace):
    four = [(0.0, 10, 5, 0), (0.1, 10, 5, 0), (0.2, 10, 5, 1), (0.3, 10, 5, 1)]
    env = trace(four, classes=("standard", "normal"), retry_s=1.0)
    env.reset(seed=0)
    for _ in range(4):
        env.step(None)
    assert env.state.now_s == 1.0  # a retry after the first hold
    offered = []
    for action in (None, 0, None):  # 0 is held: 1 is skipped; 2 goes; 3 is held
        offered.append((env.state.now_s, env.state.request.index))
        env.step(action)
    assert offered == [(1.0, 0), (1.0, 2), (1.0, 3)]
    assert env.state.now_s == 2.0
    assert env.state.request.index == 0
    assert env.state.num_held == 2


def test_skipping_is_by_model_as_well(trace):
    other = ReplicaSpec("llama-2-7b", "H100")
    fleet = FleetConfig(groups=(GroupSpec(H100, 1), GroupSpec(other, 1)))
    env = trace(
        rows(0.0, 0.1, 0.2),
        cluster=fleet,
        models=("llama-3.1-8b", "llama-2-7b"),
        model_id=[0, 1, 0],
        retry_s=1.0,
    )
    env.reset(seed=0)
    for place in (0, 1, 0):
        expected = np.arange(2) == place
        np.testing.assert_array_equal(env.state.can_take, expected)
        np.testing.assert_array_equal(env.action_masks(), [*expected, True])
        env.step(None)
    offered = []
    for _ in range(2):
        offered.append(env.state.request.index)
        env.step(None)
    assert offered == [0, 1]


def test_one_more_than_the_queue_holds_is_refused(trace):
    env = trace(rows(0.0, 0.1, 0.2, 0.3), queue_capacity=2, retry_s=10.0)
    env.reset(seed=0)
    for i in range(4):
        assert env.state.num_held == min(i, 2)
        _, _, _, _, info = env.step(None)
        if i < 3:
            lost = info["reward_terms"]["abandoned"]
            assert lost == (-1 if i == 2 else 0)
    outcomes = env.records().outcome
    assert (outcomes[2:] == outcomes[2]).all()
    assert env.records().to_frame()["outcome"].tolist()[2:] == ["refused", "refused"]


def test_a_queue_of_no_length_refuses_whatever_is_held(trace):
    env = trace(rows(0.0, 1.0), queue_capacity=0)
    env.reset(seed=0)
    env.step(None)
    _, _, terminated, _, _ = env.step(None)
    assert terminated
    assert env.records().to_frame()["outcome"].tolist() == ["refused", "refused"]


@pytest.mark.parametrize("action", [1, np.int64(1), np.array(1)])
def test_an_impossible_action_is_counted_explained_and_holds(trace, action):
    small = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=40)  # 640 tokens: not the request's 1100
    fleet = FleetConfig(groups=(GroupSpec(H100, 1), GroupSpec(small, 1)))
    env = trace(rows(0.0), cluster=fleet)
    env.reset(seed=0)
    np.testing.assert_array_equal(env.action_masks(), [True, False, True])
    _, _, terminated, _, info = env.step(action)
    assert not terminated
    assert info["num_refused"] == 1
    assert str(action) in info["refused"]
    assert env.state.request.held_before
    _, _, terminated, _, info = env.step(0)
    assert terminated
    assert info["refused"] == ""


def test_a_request_that_nobody_could_ever_hold_is_refused_on_arrival_and_asks_for_nothing(trace):
    small = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=40)
    env = trace([(0.0, 5000, 10, 0), (1.0, 640, 10, 0)], cluster=FleetConfig(groups=(GroupSpec(small, 2),)))
    _, info = env.reset(seed=0)
    assert env.core.workload.max_output_tokens[0] == 1000
    _, reward, terminated, _, info = env.step(0)  # the one decision of an episode in which all are refused
    assert terminated
    assert info["reward_terms"]["abandoned"] == -2
    assert reward < 0


def test_a_dispatch_changes_the_priority_an_engine_gives_it(trace):
    one = FleetConfig(
        groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=1), 1),), order="priority"
    )
    plain, urgent = trace(rows(0.0, 0.0, 0.0), cluster=one), trace(rows(0.0, 0.0, 0.0), cluster=one)
    for env, last in ((plain, Dispatch(0)), (urgent, Dispatch(0))):
        env.reset(seed=0)
        env.step(Dispatch(0, priority=1))
        env.step(Dispatch(0, priority=1))
        env.step(last if env is plain else Dispatch(0, priority=0))
    assert np.argsort(plain.records().first_token_s).tolist() == [2, 0, 1]
    assert np.argsort(urgent.records().first_token_s).tolist() == [2, 0, 1]
    behind = trace(rows(0.0, 0.0, 0.0), cluster=one)
    behind.reset(seed=0)
    for priority in (1, 0, 1):
        behind.step(Dispatch(0, priority=priority))
    assert np.argsort(behind.records().first_token_s).tolist() == [1, 0, 2]
    behind.reset(seed=0)
    with pytest.raises(ValueError, match=r"dispatch\.priority"):
        behind.step(Dispatch(0, priority=5))


def test_predictions_are_what_is_seen(trace):
    env = trace([(0.0, 100, 33, 0), (0.1, 100, 44, 0)])
    env.reset(seed=0)
    assert env.state.request.predicted_tokens == 33
    env.step(0)
    assert env.state.in_flight["predicted_tokens"].tolist() == [33]
    assert env.state.request.predicted_tokens == 44


def test_a_crash_at_the_instant_of_an_arrival_ends_no_episode_for_ever(trace):
    """What loses its engine at the instant at which it was sent there is offered again at the next retry."""
    one = ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=1)
    fleet = FleetConfig(groups=(GroupSpec(one, 2),), crashes=(Crash(2.0, 0),), start_fixed_s=1.0)
    env = trace(rows(1.0, 2.0, 2.5, output=200), cluster=fleet, retry_s=0.1)
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    assert (env.state.now_s, env.state.request.index, env.state.request.held_before) == (2.1, 1, True)
    for _ in range(2):
        _, _, over, _, _ = env.step(1)
    assert over
    assert env.records().to_frame()["outcome"].tolist() == ["failed", "finished", "finished"]


def test_a_request_is_sent_by_the_action_and_by_no_route_beside_it(trace):
    env = trace(rows(0.0, 1.0))
    env.reset(seed=0)
    _, _, _, _, info = env.step(Dispatch(1, commands=(Route(0, 0),)))
    assert "not by a Route" in info["refused"]
    env.step(0)
    assert env.records().engine.tolist() == [1, 0]
    assert env.core.simulator.world.cluster["num_pooled"][0] == 0


def test_what_is_held_is_counted_without_what_is_to_be_decided(trace):
    env = trace(rows(0.0, 0.1, 0.1, 0.2), retry_s=10.0)
    env.reset(seed=0)
    seen = []
    for _ in range(4):
        env.step(None)
        seen.append((env.state.num_held, env.state.held_tokens))
    assert seen == [(1, 100), (2, 200), (3, 300), (3, 300)]  # the last: the oldest is offered again


def test_the_first_interval_begins_with_the_first_arrival(trace):
    env = trace(rows(5.0, 6.0))
    _, info = env.reset(seed=0)
    assert (env.state.now_s, info["dt"]) == (5.0, 0.0)
    assert env.step(0)[4]["dt"] == pytest.approx(1.0)
