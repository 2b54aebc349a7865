import numpy as np
import pytest

from serving_gym.baselines.llm_mesh.bin_packing import Packing, instance_order, node_order
from serving_gym.baselines.llm_mesh.config import LLMMeshConfig
from serving_gym.baselines.llm_mesh.policy import LLMMeshPolicy
from serving_gym.baselines.llm_mesh.preemption import preempt, preemptible
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    Load,
    NewInstance,
    RequestPhase,
    Reschedule,
    ResizeKV,
    TokenScheduler,
    Unload,
)
from tests.baselines.llm_mesh.states import TOKEN, instance, setting, spec, state


def policy(shared, **changes):
    """With L_min of 100 tokens, so that the small nodes here have room for some instances."""
    made = LLMMeshPolicy(LLMMeshConfig(**{"min_total_tokens": 100, "watermark": 0.2, **changes}))
    made.reset(spec(shared), seed=0)
    return made


def decide(made, told):
    share = made.act(None, told)
    return share.place, [command for command in share.commands if not isinstance(command, Configure)]


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_bin_packing_prefers_cpu_then_the_highest_batch():
    candidates = [(0, 1, 9), (1, 0, 2), (2, 0, 5), (3, 1, 4)]
    assert instance_order(candidates) == [2, 1, 0, 3]
    assert instance_order(candidates, Packing.SPREAD) == [1, 2, 3, 0]
    nodes = [(0, 0, 0.1), (1, 0, 0.9), (2, 1, 0.5)]
    assert node_order(nodes) == [1, 0, 2]
    assert node_order(nodes, Packing.SPREAD) == [0, 1, 2]


def test_only_lower_batches_are_preempted_the_lowest_first():
    assert preemptible([(1, 5), (2, 1), (3, 4), (4, 0), (5, 1)], batch=4) == [4, 2, 5]
    assert preempt([(1, 1), (2, 2), (3, 3)], 3, lambda other: True, lambda: True) == [1]
    assert preempt([(1, 3)], 3, lambda other: True, lambda: True) is None
    # The first cannot be relocated, the next is not enough, the one after it is.
    moved = []
    found = preempt(
        [(1, 1), (2, 2), (3, 3)],
        4,
        lambda other: other != 1 and moved.append(other) is None,
        lambda: len(moved) == 2,
    )
    assert found == [2, 3]


# -- placement ---------------------------------------------------------------------------------------------------------


def test_the_first_decision_says_how_things_are_run():
    shared = setting()
    share = policy(shared, keep_alive="fixed", keep_alive_s=2.0).act(None, state(shared, offered=(0, 100)))
    assert share.commands == (Configure(TokenScheduler.SHORTEST_HEADROOM, True, 2.0),)
    share = policy(shared, keep_alive_s=2.0).act(None, state(shared, offered=(0, 100)))
    assert share.commands == (Configure(TokenScheduler.SHORTEST_HEADROOM, True, None),)  # the setting's own


def test_a_first_request_gets_a_new_instance_with_the_recommended_memory_on_a_cpu():
    shared = setting(("gpu", "cpu"))
    # I + mean O = 100 + 100; by the watermark 240 tokens.
    place, commands = decide(policy(shared), state(shared, offered=(0, 100)))
    assert place == NewInstance(1, 240 * TOKEN)
    assert commands == []
    place, _ = decide(policy(shared, use_cpu=False), state(shared, offered=(0, 100)))
    assert place == NewInstance(0, 240 * TOKEN)


def test_a_cpu_that_is_too_slow_is_passed_over():
    shared = setting(("gpu", "cpu"))
    # 800 tokens: 0.5 s of loading, and 1.76 s on the CPU or 0.88 s on the GPU, of 2 s.
    place, _ = decide(policy(shared), state(shared, offered=(0, 800)))
    assert place == NewInstance(0, 1080 * TOKEN)
    place, _ = decide(policy(shared, shadow_validation=False), state(shared, offered=(0, 800)))
    assert place == NewInstance(1, 1080 * TOKEN)


def test_figure_10c_the_instance_with_the_highest_batch_gets_the_request():
    shared = setting()
    told = state(shared, [instance(0, 1, requests=2), instance(4, 1, requests=3)], offered=(1, 100))
    assert decide(policy(shared), told) == (4, [])
    assert decide(policy(shared, packing="spread"), told) == (0, [])


def test_a_request_that_does_not_fit_scales_the_kv_cache_up_early():
    shared = setting()
    # Three requests: 90 + 100 each, and 100 + 100 for the new one, are 770; 1.2 times that is 924, in blocks 930.
    told = state(shared, [instance(0, 1, requests=3, kv_tokens=700)], offered=(1, 100))
    assert decide(policy(shared), told) == (0, [ResizeKV(0, 930 * TOKEN)])


def test_the_compromise_takes_what_is_required():
    shared = setting(("gpu",), memory_tokens=2900)
    # 1000 + 700 here and 1000 + 100 there: 100 are left, of 230 that are recommended and 70 required.
    told = state(
        shared,
        [instance(0, 1, requests=3, kv_tokens=700), instance(1, 0, requests=4, kv_tokens=100)],
        offered=(1, 100),
    )
    assert decide(policy(shared), told) == (0, [ResizeKV(0, 770 * TOKEN)])
    assert decide(policy(shared, compromise=False), told) == (None, [])


def test_a_busy_node_refuses_by_shadow_validation():
    shared = setting(("gpu",))
    # A round of both: 1.1 x (10 + 2 x 16 + 10 + 2 x 32) ms is 128 ms; 0.9 s of prefill make those due in 0.5 s late.
    told = state(
        shared,
        [instance(0, 1, 16, 4000), instance(1, 0, 31, 4000, deadline_s=0.5)],
        offered=(1, 800),
    )
    assert decide(policy(shared), told) == (0, [])  # EDF gives the 31 their tokens first
    told = state(
        shared,
        [instance(0, 1, 16, 4000), instance(1, 0, 31, 4000, deadline_s=0.05)],
        offered=(1, 800),
    )
    assert decide(policy(shared), told)[0] is None
    assert decide(policy(shared, shadow_validation=False), told) == (0, [])


def test_a_late_request_is_dropped_unless_late_ones_are_served():
    shared = setting()
    told = state(shared, [instance(0, 1, requests=2)], offered=(1, 100))
    told.requests["arrival_s"][told.offered] -= 5.0
    assert decide(policy(shared), told) == (None, [])
    assert decide(policy(shared, late="serve"), told) == (0, [])


def test_without_sharing_an_instance_has_its_node_alone():
    shared = setting()
    told = state(shared, [instance(0, 1, requests=2)], offered=(0, 100))
    assert decide(policy(shared), told)[0] == NewInstance(0, 240 * TOKEN)
    assert decide(policy(shared, sharing=False), told)[0] == NewInstance(1, 240 * TOKEN)


# -- preemption --------------------------------------------------------------------------------------------------------


def figure_10(shared, neighbour):
    """Model 1 with three requests on node 0, whose memory is full because of its neighbour, model 0."""
    return state(
        shared,
        [instance(0, 1, requests=3, kv_tokens=600), instance(1, 0, requests=neighbour, kv_tokens=400)],
        offered=(1, 100),
    )


def test_figure_10b_a_smaller_neighbour_is_preempted_and_its_requests_rescheduled():
    shared = setting(memory_tokens=3000)
    place, commands = decide(policy(shared), figure_10(shared, neighbour=1))
    assert place == 0
    moved, unloaded = commands  # the growth waits in the station until the neighbour is gone
    assert moved.request == 3
    assert moved.to == NewInstance(1, 230 * TOKEN)  # 1.2 x (90 + 100) in blocks
    assert unloaded == Unload(1)


def test_figure_10b_the_growth_begins_when_the_neighbour_is_gone():
    shared = setting(memory_tokens=3000)
    made = policy(shared)
    decide(made, figure_10(shared, neighbour=1))
    after = state(
        shared,
        [instance(0, 1, requests=4, kv_tokens=600), instance(4, 0, 1, 230)],
        event=Event.OPERATION,
        at=1,
        now_s=10.2,
    )
    assert decide(made, after) == (None, [ResizeKV(0, 930 * TOKEN)])


def test_figure_10a_a_neighbour_as_large_is_left_alone_and_a_fragment_created():
    shared = setting(memory_tokens=3000)
    for neighbour in (3, 4):
        place, commands = decide(policy(shared), figure_10(shared, neighbour))
        assert place == NewInstance(1, 240 * TOKEN)
        assert commands == []


def test_no_preemption_where_it_is_switched_off_or_where_the_victims_fit_nowhere():
    shared = setting(memory_tokens=3000)
    assert decide(policy(shared, preemption=False), figure_10(shared, 1))[0] == NewInstance(1, 240 * TOKEN)
    alone = setting(("gpu",), memory_tokens=3000)
    assert decide(policy(alone), figure_10(alone, 1)) == (None, [])
    assert decide(policy(alone), figure_10(alone, 0))[1] == [Unload(1)]  # an idle one needs no other node


# -- memory ------------------------------------------------------------------------------------------------------------


def test_lazy_down_after_requests_have_finished():
    shared = setting()
    # One is left: 90 + mean 100 is 190, recommended 228, by the watermark again 273.6.
    for kv_tokens, expected in ((270, []), (280, [ResizeKV(0, 230 * TOKEN)])):
        told = state(
            shared,
            [instance(0, 1, requests=1, kv_tokens=kv_tokens)],
            event=Event.FINISHED,
            at=0,
            finished=[(1, 0, 100)],
        )
        assert decide(policy(shared), told) == (None, expected)


def test_the_mean_output_length_is_learned():
    shared = setting()
    told = state(shared, offered=(1, 100), finished=[(1, 0, 200), (1, 0, 400)])
    assert decide(policy(shared), told)[0].kv_bytes == 480 * TOKEN  # 1.2 x (100 + 300)


def test_an_underestimated_kv_cache_is_scaled_up_again():
    shared = setting()
    # Two requests of 390 + 100: 980, recommended 1176.
    told = state(shared, [instance(0, 1, 2, 800, length=400)], event=Event.SHORTAGE, at=0)
    assert decide(policy(shared), told) == (None, [ResizeKV(0, 1180 * TOKEN)])


def test_without_memory_the_longest_headroom_is_evicted_and_rescheduled():
    shared = setting(memory_tokens=1800)
    told = state(shared, [instance(0, 1, 3, 800, length=260)], event=Event.SHORTAGE, at=0)
    told.requests["arrival_s"] += [0.0, 0.7, 0.3]
    place, commands = decide(policy(shared), told)
    # 3 x 270 are needed of 800; the second has the longest headroom, and a new instance on the other node takes it:
    # 250 + 100, 1.2 times in blocks.
    assert (place, commands) == (None, [Reschedule(1, NewInstance(1, 420 * TOKEN))])
    alone = setting(("gpu",), memory_tokens=1800)
    told = state(alone, [instance(0, 1, 3, 800, length=260)], event=Event.SHORTAGE, at=0)
    assert decide(policy(alone), told)[1] == [Reschedule(2)]  # to the gateway


def test_a_new_instance_waits_for_memory_that_is_on_its_way_out():
    shared = setting(("gpu",), memory_tokens=2000)
    made = policy(shared)
    going = [instance(0, 1, 0, 1000, InstanceStatus.UNLOADING, due_s=10.1)]
    assert decide(made, state(shared, going, offered=(0, 100))) == (None, [])
    # It is not promised twice.
    assert decide(made, state(shared, going, offered=(0, 100), now_s=10.05)) == (None, [])
    done = state(shared, [], event=Event.OPERATION, at=0, now_s=10.1, held=[(0, 100)])
    assert decide(made, done) == (None, [Load(0, 0, 240 * TOKEN)])
    loading = state(
        shared, [instance(0, 0, 0, 0, InstanceStatus.LOADING, due_s=10.6)], offered=(0, 100), now_s=10.2
    )
    loading.instances["kv_target_bytes"][0] = 240 * TOKEN
    assert decide(made, loading) == (0, [])


def test_a_promised_instance_that_nobody_waits_for_is_not_loaded():
    shared = setting(("gpu",), memory_tokens=2000)
    made = policy(shared)
    going = [instance(0, 1, 0, 1000, InstanceStatus.UNLOADING, due_s=10.1)]
    decide(made, state(shared, going, offered=(0, 100)))
    assert decide(made, state(shared, [], event=Event.OPERATION, at=0, now_s=10.1)) == (None, [])
    assert made.memory[0].budget_used == 0.0


# -- the token level ---------------------------------------------------------------------------------------------------


def test_the_iteration_goes_to_the_shortest_headroom():
    shared = setting()
    told = state(shared, [instance(0, 1, 2), instance(1, 0, 1, deadline_s=1.0)], event=Event.ITERATION, at=0)
    share = policy(shared, token_scheduler="policy").act(None, told)
    assert (share.place, share.prefill) == (1, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("watermark", -0.1),
        ("overestimate", -1.0),
        ("packing", "worst"),
        ("token_scheduler", "lifo"),
        ("max_batch", 1),
    ],
)
def test_bad_constants(field, value):
    with pytest.raises(ValueError, match=field):
        LLMMeshConfig(**{field: value})
    assert np.isfinite(LLMMeshConfig().watermark)


# -- idle instances and cold starts ------------------------------------------------------------------------------------


def full_node(shared, idle_s=(5.0, 90.0)):
    """One node, whose two idle instances leave no room for a third."""
    rows = [instance(slot, slot, kv_tokens=3500) for slot in range(2)]
    told = state(shared, rows, offered=(2, 100))
    told.instances["idle_s"][:2] = idle_s
    return told


def started(made, told):
    """What is said; the new instance waits for the memory of what is unloaded."""
    place, said = decide(made, told)
    assert place is None
    return said


def test_an_idle_instance_gives_way_to_a_new_one():
    shared = setting(kinds=("gpu",))
    assert started(policy(shared, reclaim="longest_idle"), full_node(shared)) == [Unload(1)]
    assert started(policy(shared, reclaim="longest_idle"), full_node(shared, (90.0, 5.0))) == [Unload(0)]
    assert started(policy(shared, reclaim="none"), full_node(shared)) == []


def test_the_least_asked_for_goes_first():
    shared, told = setting(kinds=("gpu",)), full_node(setting(kinds=("gpu",)))
    made = policy(shared, reclaim="least_asked", half_life_s=5.0)
    for request, (model, asked_s) in enumerate([(1, 8.0), (0, 9.0), (1, 10.0)]):
        made.mesh.asked.note(request, model, asked_s)
    told.requests["index"][told.offered] = 5
    assert started(made, told) == [Unload(0)]
    assert made.mesh.asked.count(1, 15.0) == pytest.approx((1 + 0.5 ** (2 / 5)) / 2)
    made.mesh.asked.note(5, 2, 20.0)  # offered again: it has been counted
    assert made.mesh.asked.count(2, 10.0) == 1.0


def test_a_cold_start_longer_than_the_promise_is_served_all_the_same():
    shared = setting(kinds=("gpu",), load_s=np.full((1, 1), 3.0))
    told = state(shared, offered=(0, 100))
    assert decide(policy(shared, late="drop"), told) == (None, [])
    place, _ = decide(policy(shared), told)
    assert place.node == 0
    told.requests["arrival_s"][told.offered] -= 5.0  # late by now, as it would have been anyhow
    assert decide(policy(shared), told)[0] == place
    shared = setting(kinds=("gpu",), load_s=np.full((1, 1), 1.0))  # this one could have been in time
    assert decide(policy(shared), told)[0] is None


def test_a_request_whose_instance_still_loads_keeps_no_other_out():
    shared = setting(kinds=("gpu",), load_s=np.full((1, 1), 3.0))
    rows = [
        instance(0, 0, requests=1, status=InstanceStatus.LOADING, due_s=13.0),
        instance(1, 1, requests=1),
    ]
    told = state(shared, rows, offered=(1, 100))
    told.requests["phase"][told.requests["instance"] == 0] = RequestPhase.WAITING
    assert decide(policy(shared), told)[0] == 1
