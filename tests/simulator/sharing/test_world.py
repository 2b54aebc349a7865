"""The shared world by hand: what a request, an operation and a node take, one thing at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.calibration.transitions import kv_resize_s
from serving_gym.envs.interface.metrics import RequestRecords, summarise
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    NewInstance,
    Reschedule,
    ResizeKV,
    Retry,
    TokenScheduler,
    Unload,
)
from serving_gym.envs.interface.slo import LengthSLO
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.sharing.view import state_of
from serving_gym.envs.workload.schema import Workload
from tests.environments.sharing.samples import simulator_of

ONE = SharingSpec(
    nodes=(NodeSpec("gpu", "A100-80GB", 1, 72.0),), slots_per_node=4, engine="vllm-0.6", front_end="none"
)
GIB4 = 4 * 10**9


def requests_of(*rows: tuple[float, int, int, int], models: int = 2) -> Workload:
    """Rows of (arrival, prompt, answer, model)."""
    columns = np.array(rows)
    return Workload(
        arrival_s=columns[:, 0],
        input_tokens=columns[:, 1],
        output_tokens=columns[:, 2],
        max_output_tokens=np.full(len(rows), 1000),
        model_id=columns[:, 3],
        models=tuple(f"llama-2-7b#{i}" for i in range(models)),
    )


def manage(simulator) -> None:
    simulator.apply(Configure(manages_memory=True))


def drive(simulator, places) -> list[Event]:
    """Places each offered request by its row, and manages no memory; returns the events."""
    manage(simulator)
    events = []
    while True:
        events.append(Event(simulator.advance_ps()))
        if events[-1] == Event.END:
            return events
        if events[-1] == Event.PLACEMENT:
            row = int(simulator.world.clock["event_request"][0])
            assert simulator.place(places[row]).accepted


def test_a_request_waits_for_the_load_then_prefills_then_decodes():
    simulator = simulator_of(requests_of((1.0, 1000, 4, 0)), ONE)
    drive(simulator, [NewInstance(0, GIB4)])
    setting, records = simulator.setting, simulator.results()
    load_s, prefill_s = setting.load_s[0, 0], setting.prefill_s[0, 0, 1000]
    assert load_s == pytest.approx(0.2 + setting.models[0].weights_bytes / 20.4e9)
    assert records.first_scheduled_s[0] == pytest.approx(1.0 + load_s)
    assert records.first_token_s[0] == pytest.approx(1.0 + load_s + prefill_s)
    decode_s = sum(setting.iteration_s(0, 0, 1, tokens) for tokens in (1001, 1002, 1003))
    assert records.finish_s[0] == pytest.approx(1.0 + load_s + prefill_s + decode_s)


def test_nodes_may_be_slower_than_profiled():
    slow = replace(ONE, nodes=(replace(ONE.nodes[0], time_factor=1.5),))
    simulator = simulator_of(requests_of((0.0, 1000, 1, 0)), slow)
    drive(simulator, [NewInstance(0, GIB4)])
    setting, records = simulator.setting, simulator.results()
    np.testing.assert_array_equal(
        setting.prefill_s, simulator_of(requests_of((0.0, 1, 1, 0)), ONE).setting.prefill_s
    )
    assert records.first_token_s[0] == pytest.approx(
        setting.load_s[0, 0] + 1.5 * setting.prefill_s[0, 0, 1000]
    )


FULL = [(0.0, 100, 2, model) for model in range(4)]  # as many instances as the node has slots


def test_what_no_place_can_take_asks_nobody_who_only_places():
    simulator = simulator_of(requests_of(*FULL, (0.1, 100, 2, 4), models=5), ONE)
    for _ in FULL:
        assert simulator.advance_ps() == Event.PLACEMENT
        simulator.note_decision()
        assert simulator.place(NewInstance(0, GIB4)).accepted
    assert simulator.advance_ps() == Event.PLACEMENT
    first = simulator.results().finish_s[:4].min() + 1.0 + 0.1  # keep-alive and unload
    assert simulator.now_s == pytest.approx(0.1 + 0.25 * np.ceil((first - 0.1) / 0.25))


@pytest.mark.parametrize("retry", list(Retry))
def test_when_a_held_request_is_offered_again(retry):
    simulator = simulator_of(requests_of(*FULL, (0.1, 100, 2, 4), models=5), ONE)
    manage(simulator)
    for _ in FULL:
        assert simulator.advance_ps() == Event.PLACEMENT
        assert simulator.place(NewInstance(0, GIB4)).accepted
    offers = []
    while (event := simulator.advance_ps()) != Event.END:
        if event == Event.PLACEMENT:
            offers.append(simulator.now_s)
            simulator.place(None, retry)
    if retry == Retry.ALWAYS:
        np.testing.assert_allclose(offers, 0.1 + 0.25 * np.arange(120))
    elif retry == Retry.NEVER:
        assert offers == [0.1]
    else:  # once more, after the last instance has gone; those of other models do not count
        gone = simulator.results().finish_s[:4].max() + 1.0 + 0.1
        np.testing.assert_allclose(offers, [0.1, 0.1 + 0.25 * np.ceil((gone - 0.1) / 0.25)])
    assert simulator.results().outcome[4] == 1  # refused after the gateway's patience
    assert simulator.now_s == pytest.approx(30.1)


def test_an_instance_whose_most_urgent_request_does_not_fit_is_short_of_memory():
    """The first of its queue would fit; by headroom the other one has its turn."""
    simulator = simulator_of(requests_of((0.0, 900, 5, 0), (0.1, 100, 5, 0)), ONE)
    manage(simulator)
    token = simulator.setting.models[0].kv_bytes_per_token
    for place in (None, NewInstance(0, 512 * token), 0):
        assert simulator.advance_ps() == Event.PLACEMENT
        assert simulator.place(place).accepted
    assert [simulator.advance_ps() for _ in range(2)] == [Event.OPERATION, Event.SHORTAGE]
    assert simulator.apply(ResizeKV(0, 2048 * token)).accepted
    while simulator.advance_ps() != Event.END:
        pass
    first, second = simulator.results().first_token_s
    assert first < second


def test_two_instances_share_a_node_iteration_by_iteration():
    """Both prefill, one after the other, and then have a token in turn: each takes as long as both."""
    simulator = simulator_of(requests_of((0.0, 512, 20, 0), (0.0, 512, 20, 1)), ONE)
    simulator.apply(Configure(TokenScheduler.ROUND_ROBIN))
    drive(simulator, [NewInstance(0, GIB4), NewInstance(0, GIB4)])
    records, setting = simulator.results(), simulator.setting
    prefill_s = setting.prefill_s[0, 0, 512]
    assert records.first_token_s[1] - records.first_token_s[0] == pytest.approx(prefill_s)
    alone = [setting.iteration_s(0, 0, 1, 513 + i) for i in range(19)]
    assert records.finish_s[1] == pytest.approx(setting.load_s[0, 0] + 2 * prefill_s + 2 * sum(alone))


def test_one_instance_decodes_its_requests_together():
    simulator = simulator_of(requests_of((0.0, 512, 20, 0), (0.0, 512, 20, 0)), ONE)
    drive(simulator, [NewInstance(0, GIB4), 0])
    records, setting = simulator.results(), simulator.setting
    both = [setting.iteration_s(0, 0, 2, 513 + i) for i in range(19)]
    start = setting.load_s[0, 0] + 2 * setting.prefill_s[0, 0, 512]
    # By headroom the first decodes a token only when its deadline is before the second's first: never here.
    np.testing.assert_allclose(records.finish_s, start + sum(both))


def test_a_resize_stops_its_instance_and_holds_the_larger_pool():
    simulator = simulator_of(requests_of((0.0, 512, 400, 0), (0.0, 512, 400, 1)), ONE)
    manage(simulator)
    seen = []
    while simulator.advance_ps() == Event.PLACEMENT:
        simulator.place(NewInstance(0, 16 * 10**9))
    # Both loads end at once; the second is told of next.
    assert simulator.advance_ps() == Event.OPERATION
    weights = simulator.setting.models[0].weights_bytes
    before = int(simulator.world.nodes["held"][0])
    assert before == 2 * (weights + 16 * 10**9)
    simulator.advance_ps(simulator.now_ps + 10**11)
    begun = simulator.now_s
    busy_until = state_of(simulator).nodes["due_s"][0]
    running = int(state_of(simulator).nodes["at_work"][0])
    assert simulator.apply(ResizeKV(running, 8 * 10**9)).accepted
    assert int(simulator.world.nodes["held"][0]) == before
    assert simulator.apply(ResizeKV(1 - running, 18 * 10**9)).accepted
    assert int(simulator.world.nodes["held"][0]) == before + 2 * 10**9
    state = state_of(simulator)
    due = state.instances["operation_due_s"]
    # The iteration under way ends first; the other instance is not at work and begins at once.
    assert due[running] == pytest.approx(busy_until + kv_resize_s(16e9, 8e9))
    assert due[1 - running] == pytest.approx(begun + kv_resize_s(16e9, 18e9))
    assert not state.runnable.any()
    while not seen or seen[-1] != Event.END:
        seen.append(simulator.advance_ps())
        if simulator.now_s > max(due[:2]) and seen.count(Event.OPERATION) == 2:
            break
    assert int(simulator.world.nodes["held"][0]) == 2 * weights + 26 * 10**9


@pytest.mark.parametrize(("new_gb", "seconds"), [(16, 0.3), (64, 1.9)])
def test_resizes_take_what_figure_8_says(new_gb, seconds):
    setting = simulator_of(requests_of((0.0, 1, 1, 0)), ONE).setting
    assert setting.resize_s(0, 32 * 10**9, new_gb * 10**9) == pytest.approx(seconds)


def test_an_idle_instance_is_unloaded_after_a_second():
    simulator = simulator_of(requests_of((0.0, 100, 2, 0), (5.0, 100, 2, 1)), ONE)
    drive(simulator, [NewInstance(0, GIB4), NewInstance(0, GIB4)])
    records = simulator.results()
    used = simulator.used_ps()[0] / 1e12
    first = records.finish_s[0] + 1.0 + 0.1  # keep-alive and unload
    assert used == pytest.approx(first + records.finish_s[1] - 5.0)


def test_a_growth_behind_a_shrink_runs_out_of_memory_and_waiting_for_it_does_not():
    """The hazard of section 6.3: what shrinks still holds its old blocks."""
    for waits in (False, True):
        simulator = simulator_of(requests_of((0.0, 512, 100, 0), (0.0, 512, 100, 1)), ONE)
        manage(simulator)
        while simulator.advance_ps() == Event.PLACEMENT:
            simulator.place(NewInstance(0, 20 * 10**9))
        assert simulator.apply(ResizeKV(0, 4 * 10**9)).accepted
        while waits and state_of(simulator).instances["status"][0] == InstanceStatus.RESIZING:
            simulator.advance_ps()
        if state_of(simulator).instances["status"][1] != InstanceStatus.SERVING:
            simulator.advance_ps()
        assert simulator.apply(ResizeKV(1, 34 * 10**9)).accepted
        assert state_of(simulator).num_ooms == (0 if waits else 1)
        status = state_of(simulator).instances["status"][1]
        assert status == (InstanceStatus.RESIZING if waits else InstanceStatus.EMPTY)
        assert (simulator.results().outcome == 2).sum() == (0 if waits else 1)


def test_a_pool_that_runs_short_recomputes_the_last_where_nobody_helps():
    workload = requests_of((0.0, 160, 200, 0), (0.0, 160, 200, 0))
    simulator = simulator_of(workload, ONE)
    manage(simulator)
    kv = 24 * 16 * simulator.setting.models[0].kv_bytes_per_token  # 24 blocks: both prompts and 64 tokens
    events = drive(simulator, [NewInstance(0, kv), 0])
    assert Event.SHORTAGE in events
    records = simulator.results()
    assert records.preemptions.tolist() == [0, 1]
    assert records.finish_s[1] > records.finish_s[0]
    assert records.generated_tokens.tolist() == [200, 200]


def test_a_rescheduled_request_is_prefilled_with_what_it_had():
    workload = requests_of((0.0, 512, 50, 0), models=1)
    simulator = simulator_of(workload, ONE)
    manage(simulator)
    simulator.advance_ps()
    simulator.place(NewInstance(0, GIB4))
    simulator.advance_ps()
    simulator.advance_ps(simulator.now_ps + 5 * 10**11)
    had = int(state_of(simulator).requests["generated_tokens"][0])
    assert 0 < had < 50
    due = float(state_of(simulator).nodes["due_s"][0])
    assert simulator.apply(Reschedule(0, NewInstance(0, GIB4))).accepted
    assert state_of(simulator).requests["evictions"].tolist() == [1]
    assert state_of(simulator).nodes["at_work"][0] == 0  # the iteration goes on, for nobody
    began = simulator.now_s
    while simulator.advance_ps() != Event.END:
        pass
    setting, records = simulator.setting, simulator.results()
    again = setting.prefill_s[0, 0, 512 + had]
    rest = sum(setting.iteration_s(0, 0, 1, 512 + had + 1 + i) for i in range(50 - had - 1))
    assert records.finish_s[0] == pytest.approx(max(began + setting.load_s[0, 0], due) + again + rest)
    assert records.first_token_s[0] < began


def test_an_answer_ends_where_its_model_does_and_a_prompt_that_fills_it_is_refused():
    simulator = simulator_of(requests_of((0.0, 4000, 500, 0), (0.0, 4096, 5, 0)), ONE)
    drive(simulator, [NewInstance(0, GIB4)])
    records = simulator.results()
    assert records.generated_tokens.tolist() == [96, 0]
    assert records.outcome.tolist() == [0, 1]


def test_an_instance_with_requests_is_not_unloaded():
    simulator = simulator_of(requests_of((0.0, 512, 50, 0)), ONE)
    simulator.advance_ps()
    simulator.place(NewInstance(0, GIB4))
    assert simulator.apply(Unload(0)).reason == "the instance still has requests"
    assert simulator.refused_commands == 1


def test_shortest_headroom_is_figure_5():
    """Instance 2 has 1.9 s of headroom and instance 1 more, so 2 runs; then it has 1.9 - 0.05 + 0.25 = 2.1 s."""
    workload = requests_of((0.0, 10, 400, 0), (0.5, 10, 400, 1))
    simulator = simulator_of(workload, ONE)
    simulator.advance_ps()
    simulator.place(NewInstance(0, GIB4))
    simulator.advance_ps()
    simulator.place(NewInstance(0, GIB4))
    deadlines, served = [], []
    while simulator.now_s < 2.5:
        state = state_of(simulator)
        at_work = int(state.nodes["at_work"][0])
        rows = state.requests
        headroom = rows["arrival_s"] + rows["ttft_slo_s"] + 0.25 * rows["generated_tokens"] - state.now_s
        if state.runnable[:2].all() and at_work >= 0:
            served.append(at_work)
            deadlines.append(int(rows["instance"][headroom.argmin()]))
        due_ps = int(state.nodes["due_s"][0] * 1e12) if at_work >= 0 else simulator.now_ps + 10**9
        assert simulator.advance_ps(max(due_ps, simulator.now_ps) + 1) == Event.NONE
    assert len(served) > 30
    assert served == deadlines
    assert set(served) == {0, 1}


def test_the_promise_to_a_long_prompt_is_longer():
    slo = LengthSLO(2.0, 0.25, 1 / 512)
    np.testing.assert_allclose(slo.ttft_limits_s(np.array([100, 1024, 2048])), [2.0, 2.0, 4.0])
    n = 2
    records = RequestRecords(
        index=np.arange(n),
        arrival_s=np.zeros(n),
        input_tokens=np.array([100, 2048], np.int32),
        output_tokens=np.ones(n, np.int32),
        class_id=np.zeros(n, np.int32),
        priority=np.zeros(n, np.int32),
        first_scheduled_s=np.zeros(n),
        first_token_s=np.full(n, 3.0),
        finish_s=np.full(n, 3.0),
        generated_tokens=np.ones(n, np.int32),
        preemptions=np.zeros(n, np.int32),
        engine=np.zeros(n, np.int32),
        outcome=np.zeros(n, np.int8),
    )
    assert summarise(records, {"standard": slo}, ("standard",), 3.0)["ttft_attainment"] == 0.5
    with pytest.raises(ValueError, match="ttft_s_per_token must be finite and not negative"):
        LengthSLO(1.0, 1.0, -1.0)


def test_profiles_are_off_by_no_more_than_said_and_the_world_is_as_it_was():
    exact = simulator_of(requests_of((0.0, 100, 20, 0)), ONE)
    noisy, same, other = (
        simulator_of(requests_of((0.0, 100, 20, 0)), replace(ONE, profile_error=0.1, profile_seed=seed))
        for seed in (0, 0, 1)
    )
    for name in ("prefill_s", "decode_s", "context_s"):
        truth, known = getattr(exact.setting, name), getattr(noisy.setting, name)
        off = np.log(known[truth > 0] / truth[truth > 0])
        assert 0 < np.abs(off).max() <= 0.1 + 1e-6
        np.testing.assert_array_equal(known, getattr(same.setting, name))
        assert not np.array_equal(known, getattr(other.setting, name))
    for simulator in (exact, noisy):
        drive(simulator, [NewInstance(0, GIB4)])
    np.testing.assert_array_equal(exact.results().finish_s, noisy.results().finish_s)


def test_nodes_may_resize_at_the_speed_of_their_memory():
    nodes = (NodeSpec("cpu", "Xeon-32c-AMX", 1, kv_resize="memory"), NodeSpec("gpu", "A100-80GB", 1))
    setting = simulator_of(requests_of((0.0, 1, 1, 0)), replace(ONE, nodes=nodes)).setting
    byte_s = 1 / (0.7 * 307.2e9)
    assert setting.resize_s(0, 10**9, 3 * 10**9) == pytest.approx(2e9 * byte_s + 2e9 * byte_s)
    assert setting.resize_s(1, 32 * 10**9, 16 * 10**9) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="kv_resize"):
        NodeSpec("cpu", "Xeon-32c-AMX", 1, kv_resize="memroy")
