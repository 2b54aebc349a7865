"""The compiled world equals the plain one, event by event, whatever it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    Load,
    NewInstance,
    RequestPhase,
    Reschedule,
    ResizeKV,
    Retry,
    TokenScheduler,
    Unload,
)
from serving_gym.envs.sharing.view import state_of
from serving_gym.envs.simulator.sharing.arrays import GONE
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from tests.environments.sharing.samples import CPU, GPU, SMALL, simulator_of, some_requests
from tests.simulator.sharing.oracle import NEVER, Oracle

TIGHT = ManagerSpec(watermark=0.2, least_tokens=600, mean_weight=2.0, retry_s=0.5, patience_s=1.5)


class Twins:
    """A simulator and its oracle, told the same at every event by a random policy."""

    def __init__(self, seed: int, scheduler: TokenScheduler, manages: bool, restart: bool) -> None:
        slow = replace(GPU, time_factor=1.3 if restart else 1.0)
        spec = replace(SMALL, nodes=(CPU, slow), on_oom="restart" if restart else "fail")
        self.simulator = simulator_of(some_requests(seed), spec, TIGHT, scheduler=scheduler)
        self.oracle = Oracle(self.simulator)
        self.rng = np.random.default_rng(seed)
        self.simulator.apply(Configure(manages_memory=manages))
        self.oracle.manages = self.manages = manages

    def run(self) -> list[str]:
        """To the end; names of all events."""
        names = []
        while True:
            event = Event(self.simulator.advance_ps())
            assert self.oracle.advance() == event.name.lower()
            self.compare(event)
            names.append(event.name.lower())
            if event == Event.END or len(names) > 20_000:
                return names
            self.simulator.note_decision()
            self.tell(event)

    def compare(self, event: Event) -> None:
        simulator, oracle = self.simulator, self.oracle
        state = state_of(simulator)
        assert simulator.now_ps == oracle.now
        clock = simulator.world.clock[0]
        about = (int(clock["event_node"]), int(clock["event_instance"]), int(clock["event_request"]))
        assert (event.name.lower(), *about) == oracle.event
        for slot, instance in enumerate(oracle.slots):
            row, raw = state.instances[slot], simulator.world.instances[slot]
            if instance is None:
                assert row["status"] == InstanceStatus.EMPTY
                assert raw["held"] == 0
                continue
            assert InstanceStatus(int(row["status"])).name.lower() == instance.status
            assert (row["model"], row["kv_bytes"]) == (instance.model, instance.kv)
            assert row["kv_target_bytes"] == instance.target
            assert raw["held"] == instance.held
            assert raw["used_blocks"] == oracle.used(instance)
            assert row["kv_used_tokens"] == sum(r.tokens for r in instance.running)
            assert (row["num_running"], row["num_waiting"]) == (len(instance.running), len(instance.waiting))
            assert raw["due_ps"] == instance.due
            assert raw["idle_ps"] == instance.idle
            assert bool(state.runnable[slot]) == oracle.runnable(instance)
        for node, row, raw in zip(oracle.nodes, state.nodes, simulator.world.nodes, strict=True):
            assert row["held_bytes"] == oracle.memory_held(node) <= node.memory
            assert raw["due_ps"] == node.due
            assert raw["busy_ps"] == node.busy
            assert row["at_work"] == (node.job[0].slot if node.job else -1)
            assert row["prefilling"] == (node.job[1].row if node.job and node.job[1] else -1)
        there = [r for r in oracle.requests[: oracle.next_arrival] if r.phase != "gone"]
        assert state.requests["index"].tolist() == [r.row for r in there]
        for row, request in zip(state.requests, there, strict=True):
            assert RequestPhase(int(row["phase"])).name.lower() == request.phase
            assert row["instance"] == (request.place.slot if request.place else -1)
            assert (row["generated_tokens"], row["evictions"]) == (request.generated, request.evictions)
            deadline = simulator.world.requests["deadline_ps"][request.row]
            assert deadline == request.deadline
        assert state.num_ooms == oracle.ooms
        assert state.num_held == len(oracle.held)

    # -- the random policy ---------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        for _ in range(int(self.rng.integers(3)) if self.manages or self.rng.random() < 0.1 else 0):
            self.command()
        if event == Event.PLACEMENT:
            self.place()
        elif event == Event.ITERATION:
            self.iterate()

    def some_kv(self) -> int:
        return int(self.rng.choice([1, 5 * 10**8, 2 * 10**9, 6 * 10**9, 20 * 10**9]))

    def place(self) -> None:
        row = self.oracle.event[3]
        request = self.oracle.requests[row]
        mine = [i.slot for i in self.oracle.slots if i is not None and i.model == request.model]
        draw = self.rng.random()
        if mine and draw < 0.6:
            place: Any = int(self.rng.choice(mine))
        elif draw < 0.8:
            place = NewInstance(int(self.rng.integers(3)), max(self.some_kv(), 2 * 10**9))
        elif draw < 0.9:
            place = int(self.rng.integers(len(self.oracle.slots)))
        else:
            place = None
        retry = Retry(int(self.rng.choice([0, 0, 1, 1, 2])))
        receipt = self.simulator.place(place, retry)
        reason = self.move(row, place) if place is not None else ""
        self.oracle.await_turn(request, retry.name.lower())
        assert receipt.reason == reason

    def move(self, row: int, place: Any) -> str:
        request = self.oracle.requests[row]
        if request.phase in ("gone", "coming"):
            return "the request is not in the system"
        if isinstance(place, NewInstance):
            return self.oracle.place_new(request, place.node, place.kv_bytes)
        return self.oracle.place_at(request, place)

    def iterate(self) -> None:
        node = self.oracle.nodes[self.oracle.event[1]]
        able = [i.slot for i in self.oracle.on(node) if self.oracle.runnable(i)]
        slot = None if self.rng.random() < 0.2 else int(self.rng.choice(able))
        prefill = [None, True, False][int(self.rng.integers(3))]
        assert self.simulator.iterate(slot, prefill).accepted
        node.asked = (slot, prefill if slot is not None else None)

    def command(self) -> None:
        kind, oracle = int(self.rng.integers(5)), self.oracle
        slot, row = int(self.rng.integers(len(oracle.slots))), int(self.rng.integers(len(oracle.requests)))
        instance, request = oracle.slots[slot], oracle.requests[row]
        command: Any
        reason = ""
        if kind == 0:
            model, node, kv = int(self.rng.integers(5)), int(self.rng.integers(3)), self.some_kv()
            command = Load(model, node, kv)
            begun = oracle.load(oracle.nodes[node], model, kv)
            reason = begun if isinstance(begun, str) else ""
        elif kind == 1:
            command = Unload(slot)
            if instance is None or instance.status == "unloading":
                reason = "the instance is empty or being unloaded"
            elif instance.requests:
                reason = "the instance still has requests"
            elif instance.status != "serving":
                reason = "the instance is not serving: an operation on it is under way"
            else:
                oracle.unload(instance)
        elif kind == 2:
            kv = self.some_kv()
            command = ResizeKV(slot, kv)
            if instance is None or instance.status == "unloading":
                reason = "the instance is empty or being unloaded"
            elif instance.status != "serving":
                reason = "the instance is not serving: an operation on it is under way"
            elif kv < oracle.block_bytes(instance.model):
                reason = "a KV pool must hold a block at least"
            elif kv // oracle.block_bytes(instance.model) < oracle.used(instance):
                reason = "what is in the KV pool would not fit"
            else:
                oracle.resize(instance, kv)
        elif kind == 3:
            command = Reschedule(row)
            if request.phase in ("gone", "coming"):
                reason = "the request is not in the system"
            elif request.phase == "held":
                reason = "the request is in that instance already"
            else:
                oracle.leave(request, True)
                oracle.to_gateway(request)
        else:
            to: Any = slot if self.rng.random() < 0.5 else NewInstance(slot % 3, max(self.some_kv(), 10**9))
            command = Reschedule(row, to)
            reason = self.move(row, to)
        assert self.simulator.apply(command).reason == reason


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("manages", [False, True])
@pytest.mark.parametrize("scheduler", list(TokenScheduler))
def test_event_by_event(scheduler, manages, seed):
    twins = Twins(seed, scheduler, manages, restart=seed % 2 == 1)
    names = twins.run()
    assert names[-1] == "end"
    results, oracle = twins.simulator.results(), twins.oracle
    assert (twins.simulator.world.requests["phase"] == GONE).all()
    outcomes = np.array(["finished", "refused", "failed"])[results.outcome]
    assert outcomes.tolist() == [request.outcome for request in oracle.requests]
    first = np.array([r.first for r in oracle.requests])
    finish = np.array([r.finish for r in oracle.requests])
    np.testing.assert_allclose(np.nan_to_num(results.first_token_s, nan=-1e-12), first / 1e12, rtol=1e-12)
    np.testing.assert_allclose(np.nan_to_num(results.finish_s, nan=-1e-12), finish / 1e12, rtol=1e-12)
    assert results.generated_tokens.tolist() == [r.generated for r in oracle.requests]


def test_the_cases_cover_what_can_happen():
    """Every event, OOMs, evictions, refusals and finished requests are among them."""
    seen: dict[str, int] = {}
    for seed in range(4):
        for manages, scheduler in ((True, TokenScheduler.POLICY), (False, TokenScheduler.SHORTEST_HEADROOM)):
            twins = Twins(seed, scheduler, manages, restart=False)
            for name in twins.run():
                seen[name] = seen.get(name, 0) + 1
            seen["ooms"] = seen.get("ooms", 0) + twins.oracle.ooms
            for request in twins.oracle.requests:
                seen[request.outcome] = seen.get(request.outcome, 0) + 1
                seen["evicted"] = seen.get("evicted", 0) + request.evictions
            assert all(instance is None or instance.due <= NEVER for instance in twins.oracle.slots)
    for name in ("placement", "finished", "operation", "shortage", "iteration", "end", "ooms", "failed"):
        assert seen.get(name, 0) > 0, name
    assert min(seen["refused"], seen["evicted"]) > 0
