"""A closed loop: so many clients, each sending its next request when its last one has ended."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload

SPEC = ClusterSpec(model="llama-3.1-8b", gpu="H100", num_gpus=1, base_width=1, engine="")


def closed_loop(requests: int, clients: int, output_tokens: int = 64) -> Workload:
    """Requests of one length."""
    return Workload(
        arrival_s=np.zeros(requests),
        input_tokens=np.full(requests, 512),
        output_tokens=np.full(requests, output_tokens),
        num_clients=clients,
    )


@pytest.mark.parametrize("clients", [1, 3, 16, 1000])
def test_as_many_requests_are_in_flight_as_there_are_clients(clients: int) -> None:
    """Until the last request is sent, neither more nor fewer."""
    simulator = Simulator(SPEC, (SLO(1.0, 0.1),))
    simulator.reset(closed_loop(100, clients))
    simulator.run_to_completion()
    records = simulator.results()
    times = np.concatenate([records.arrival_s, records.finish_s])
    for now in np.unique(times)[:-1]:
        in_flight = np.sum(records.arrival_s <= now) - np.sum(records.finish_s <= now)
        sent_all = np.sum(records.arrival_s <= now) == 100
        assert in_flight == min(clients, 100) or (sent_all and in_flight < clients)


def test_one_client_sends_when_its_last_request_has_ended() -> None:
    """With one client every request arrives at the very instant at which the one before ended."""
    simulator = Simulator(SPEC, (SLO(1.0, 0.1),))
    simulator.reset(closed_loop(20, clients=1))
    simulator.run_to_completion()
    records = simulator.results()
    np.testing.assert_array_equal(records.arrival_s[1:], records.finish_s[:-1])


def test_a_fork_of_a_closed_loop_goes_its_own_way_to_the_same_numbers() -> None:
    """Arrivals follow from what happened, so a fork keeps arrivals of its own."""
    simulator = Simulator(SPEC, (SLO(1.0, 0.1),))
    simulator.reset(closed_loop(60, clients=7))
    simulator.advance(1.0)
    fork = simulator.fork()
    fork.run_to_completion()
    before = simulator.traffic.arrival_ps.copy()
    np.testing.assert_array_equal(before, simulator.traffic.arrival_ps)
    simulator.run_to_completion()
    np.testing.assert_array_equal(simulator.results().finish_s, fork.results().finish_s)


def test_clients_whose_requests_are_refused_go_on() -> None:
    """A request that no engine could hold is refused, and its client sends the next one."""
    workload = closed_loop(10, clients=2)
    workload.input_tokens[::2] = 50_000_000
    simulator = Simulator(SPEC, (SLO(1.0, 0.1),))
    simulator.reset(workload)
    simulator.run_to_completion()
    assert np.isfinite(simulator.results().finish_s).sum() == 5
