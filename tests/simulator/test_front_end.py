"""What lies between engines and clients is part of the simulated cluster: tokens count when clients have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import ABANDONED, FINISHED, RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.cluster import profile_of
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.validation.predict import with_frontend
from tests.defaults import make_env

SPEC = ClusterSpec(model="llama-3.1-8b", gpu="H100", num_gpus=1, order="fcfs", router="round_robin")
FRONT_END = profile_of(SPEC).frontends[1]
SLOS = (SLO(0.5, 0.02),)
COLUMNS = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")


def stream(count: int = 200, rate_scale: float = 2.0) -> Workload:
    return WorkloadSource(
        WorkloadSpec("azure_conv_fitted", num_requests=count, rate_scale=rate_scale)
    ).sample(0)


def started(workload: Workload, spec: ClusterSpec = SPEC) -> Simulator:
    simulator = Simulator(spec, SLOS)
    simulator.reset(workload)
    return simulator


def served(workload: Workload, spec: ClusterSpec = SPEC) -> RequestRecords:
    simulator = started(workload, spec)
    simulator.run_to_completion()
    assert simulator.idle
    return simulator.results()


def equal(one: RequestRecords, other: RequestRecords) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


@pytest.mark.parametrize("rate_scale", [0.2, 4.0])
def test_clients_see_every_token_later_by_the_front_end(rate_scale: float) -> None:
    workload = stream(rate_scale=rate_scale)
    clients, engine = served(workload), served(workload, replace(SPEC, front_end="none"))
    expected = with_frontend(engine, FRONT_END)
    np.testing.assert_array_equal(clients.first_scheduled_s, engine.first_scheduled_s)
    for column in ("first_token_s", "finish_s"):
        np.testing.assert_allclose(getattr(clients, column), getattr(expected, column), rtol=1e-12)
    assert (clients.first_token_s - engine.first_token_s).min() >= FRONT_END.fixed_s * 0.999


def test_it_does_not_matter_how_time_is_sliced_or_forked() -> None:
    workload = stream(rate_scale=4.0)
    whole, sliced = started(workload), started(workload)
    for second in np.arange(0.0, 6.0, 0.003):
        sliced.advance(float(second))
    fork = sliced.fork()
    for simulator in (whole, sliced, fork):
        simulator.run_to_completion()
    for other in (sliced, fork):
        equal(whole.results(), other.results())
        assert whole.latency_cost == pytest.approx(other.latency_cost, rel=1e-12)


def test_the_latency_cost_adds_up_what_clients_saw() -> None:
    simulator = started(stream(60))
    simulator.run_to_completion()
    records = simulator.results()
    tpot = (records.finish_s - records.first_token_s) / np.maximum(records.output_tokens - 1, 1)
    expected = (records.first_token_s - records.arrival_s) / SLOS[0].ttft_s + tpot / SLOS[0].tpot_s
    assert simulator.latency_cost == pytest.approx(expected.sum(), rel=1e-9)


def test_a_closed_loop_sends_when_the_answer_has_come() -> None:
    one = Workload(arrival_s=[0.0, 1.0, 2.0], input_tokens=[100] * 3, output_tokens=[5] * 3, num_clients=1)
    records = served(one)
    np.testing.assert_allclose(records.arrival_s[1:], records.finish_s[:-1], rtol=1e-12)
    quicker = served(one, replace(SPEC, front_end="none"))
    late = records.e2e_s - quicker.e2e_s
    np.testing.assert_allclose(late, FRONT_END.fixed_s, rtol=1e-6)


@pytest.mark.parametrize(("patience", "outcome"), [(0.5, ABANDONED), (1.5, FINISHED)])
def test_a_client_hangs_up_though_its_token_is_on_the_way(patience: float, outcome: int) -> None:
    plain = Workload(arrival_s=[0.0], input_tokens=[100], output_tokens=[1])
    engine_s = served(plain, replace(SPEC, front_end="none")).first_token_s[0]
    impatient = replace(plain, patience_s=np.array([engine_s + patience * FRONT_END.fixed_s]))
    records = served(impatient)
    assert records.outcome[0] == outcome
    assert np.isnan(records.first_token_s[0]) == (outcome == ABANDONED)


@pytest.mark.parametrize(("part", "there"), [(0.5, True), (1.5, False)])
def test_a_router_counts_requests_until_their_clients_have_the_answers(
    part: float, there: bool, tmp_path: Path
) -> None:
    """The second of two requests arrives while the first one's only token is on its way, or after that."""
    alone = Workload(arrival_s=[0.0], input_tokens=[100], output_tokens=[1])
    engine_s = float(served(alone, replace(SPEC, front_end="none")).finish_s[0])
    trace = tmp_path / "two.csv"
    trace.write_text(
        f"arrival_s,input_tokens,output_tokens\n0.0,100,1\n{engine_s + part * FRONT_END.fixed_s!r},100,1\n"
    )
    env = make_env(
        "routing",
        cluster=FleetConfig((GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),)),
        workload=WorkloadSpec("file", path=str(trace), split="all"),
        split="all",
    )
    env.reset(seed=0)
    observation = env.step(0)[0]
    shown = dict(zip(PLACE_FEATURES, observation["places"][0], strict=True))
    assert (shown["in_flight"] > 0, shown["unanswered"] > 0) == (there, there)
    rows = env.unwrapped.state.in_flight
    assert rows["place"].tolist() == ([0] if there else [])
    assert (rows["first_token_s"] < 0).all()


def test_without_a_front_end_engines_are_seen_at_once() -> None:
    workload = stream(50)
    published = replace(SPEC, engine="", async_scheduling=False)
    simulator = started(workload, published)
    assert len(simulator.tables.fronts) == len(simulator.world.returns) == 0
    equal(served(workload, published), served(workload, replace(published, front_end="none")))


def test_a_wrong_word_is_told() -> None:
    with pytest.raises(ValueError, match=r"cluster.front_end 'non'; did you mean 'none'\?"):
        started(stream(5), replace(SPEC, front_end="non"))
