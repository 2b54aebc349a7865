"""What a router sees: its own record of requests in flight, gauges as old as their last reading, prefix caches."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
TP2 = ReplicaSpec("llama-3.1-8b", "H100", tp_size=2)
MIXED = FleetConfig(groups=(GroupSpec(H100, 2), GroupSpec(TP2, 1)))


def made(**arguments):
    workload = WorkloadSpec(name="azure_conv_fitted", num_requests=200, rate_rps=60.0)
    return make_env("routing", **{"workload": workload, "cluster": MIXED, **arguments})


def decisions(env, seed=0):
    """Every decision of an episode under random routing."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    done = False
    while not done:
        yield observation, env.state
        observation, _, terminated, truncated, _ = env.step(
            int(rng.choice(np.flatnonzero(env.action_masks())))
        )
        done = terminated or truncated


def place(observation, feature):
    return observation["places"][:, PLACE_FEATURES.index(feature)].astype(float)


def test_requests_in_flight_are_those_sent_and_not_done():
    env = made()
    for _, state in decisions(env):
        records = env.records()
        sent = records.engine >= 0
        going = sent & np.isnan(records.finish_s) & (records.outcome == 3)
        rows = np.sort(state.in_flight, order="index")
        np.testing.assert_array_equal(rows["index"], np.flatnonzero(going))
        np.testing.assert_array_equal(rows["place"], records.engine[going])
        np.testing.assert_array_equal(rows["generated_tokens"], records.generated_tokens[going])
        np.testing.assert_array_equal(rows["first_token_s"] < 0, np.isnan(records.first_token_s[going]))
        inside = (
            rows["generated_tokens"] < records.output_tokens[going]
        )  # others are on their way to the client
        np.testing.assert_array_equal(
            np.bincount(rows["place"][inside], minlength=3),
            state.engines["num_running"] + state.engines["num_waiting"],
        )


def expected_remaining(predicted: int, generated: int) -> int:
    expected = max(predicted, 1)
    while expected <= generated:
        expected += max(expected // 5, 1)
    return expected - generated


def test_the_observation_of_places_follows_from_the_state():
    """Every feature that can be read off the typed state, in physical units."""
    env = made()
    scales, nominal = env.config.scales, env.policy_spec.engines
    for observation, state in decisions(env):
        rows, request = state.in_flight, state.request
        answered = rows["first_token_s"] >= 0
        at = rows["place"]

        def summed(values, at=at):
            return np.bincount(at, weights=values, minlength=3)

        context = summed((rows["input_tokens"] + rows["generated_tokens"]) * answered)
        remaining_each = np.array(
            [
                expected_remaining(int(row["predicted_tokens"]), int(row["generated_tokens"]))
                if row["first_token_s"] >= 0
                else int(row["predicted_tokens"])
                for row in rows
            ]
        )
        queued, remaining = summed(rows["input_tokens"] * ~answered), summed(remaining_each)
        batch = np.minimum(summed(answered) + 1, nominal.max_num_seqs).astype(int)
        iteration = nominal.decode_iteration_s(batch, context)
        shown = {
            "can_take": state.can_take,
            "in_service": np.ones(3),
            "in_flight": np.log1p(summed(np.ones(len(rows))) / scales.requests),
            "unanswered": np.log1p(summed(~answered) / scales.requests),
            "waiting": np.log1p(state.engines["num_waiting"] / scales.requests),
            "running": np.log1p(state.engines["num_running"] / scales.requests),
            "kv_usage": state.engines["kv_used_blocks"] / state.engines["kv_capacity_blocks"],
            "queued_tokens": np.log1p(queued / scales.tokens),
            "prefill_backlog_s": np.log1p(queued * nominal.prefill_s_per_token / scales.prefill_s),
            "remaining_tokens": np.log1p(remaining / scales.tokens),
            "drain_s": np.log1p(remaining * iteration / np.maximum(batch - 1, 1) / scales.decode_s),
            "context_usage": context / nominal.kv_capacity_tokens,
            "iteration_s": np.log1p(iteration / scales.iteration_s),
            "own_prefill_s": np.log1p(request.input_tokens * nominal.prefill_s_per_token / scales.prefill_s),
            "own_decode_s": np.log1p(
                request.predicted_tokens
                * nominal.decode_iteration_s(batch, context + request.input_tokens)
                / scales.decode_s
            ),
            "prefix_hit": np.zeros(3),
            "kv_capacity": np.log1p(nominal.kv_capacity_tokens / scales.capacity_tokens),
            "network_s": np.zeros(3),
        }
        peak = np.zeros(3)
        for ahead in range(0, 101, 10):
            still = answered & (remaining_each > ahead)
            total = summed((rows["input_tokens"] + rows["generated_tokens"] + ahead) * still)
            total += (request.input_tokens + ahead) * (ahead < request.predicted_tokens)
            peak = np.maximum(peak, total)
        shown["peak_usage"] = peak / nominal.kv_capacity_tokens
        shown["excess_usage"] = np.maximum(shown["peak_usage"] - 0.8, 0)
        assert set(shown) == set(PLACE_FEATURES)
        for name, values in shown.items():
            np.testing.assert_allclose(place(observation, name), values, rtol=2e-6, atol=1e-7, err_msg=name)


def test_the_observation_of_the_request_and_the_cluster_follows_from_the_state():
    env = made(queue_capacity=20)
    scales, slo = env.config.scales, env.policy_spec.slos[0]
    for observation, state in decisions(env):
        request = state.request
        expected = {
            "input_tokens": np.log1p(request.input_tokens / scales.prompt_tokens),
            "predicted_tokens": np.log1p(request.predicted_tokens / scales.prompt_tokens),
            "max_output_tokens": np.log1p(request.max_output_tokens / scales.prompt_tokens),
            "slack": max(request.deadline_s - state.now_s, 0) / slo.ttft_s,
            "overdue": np.log1p(max(state.now_s - request.deadline_s, 0) / slo.ttft_s),
            "waited_s": np.log1p((state.now_s - request.arrival_s) / scales.decode_s),
            "held_before": request.held_before,
        }
        for i, name in enumerate(REQUEST_FEATURES):
            assert observation["request"][i] == pytest.approx(float(expected[name]), rel=1e-5, abs=1e-6), name
        assert observation["request"][-1] == 1  # its class
        cluster = dict(zip(CLUSTER_FEATURES, observation["cluster"], strict=True))
        assert cluster["held"] == pytest.approx(np.log1p(state.num_held / scales.requests), rel=1e-5)
        unsent = state.held_tokens + request.input_tokens
        assert cluster["unsent_tokens"] == pytest.approx(np.log1p(unsent / scales.tokens), rel=1e-5)
        assert cluster["gauge_age_s"] == 0


def test_averages_of_arrivals_come_to_the_rate():
    env = make_env(
        "routing",
        workload=WorkloadSpec(name="azure_conv_fitted", num_requests=3000, rate_rps=40.0),
        cluster=MIXED,
    )
    seen = []
    for i, (observation, _) in enumerate(decisions(env)):
        if i > 1500:
            seen.append(observation["cluster"])
    shown = np.mean(seen, axis=0)
    rate = np.expm1(shown[CLUSTER_FEATURES.index("requests_short")]) * env.config.scales.request_rate
    assert rate == pytest.approx(env.core.workload.rate_rps, rel=0.25)
    prompts = np.expm1(shown[CLUSTER_FEATURES.index("prompt_tokens_short")]) * env.config.scales.token_rate
    assert prompts == pytest.approx(rate * env.core.workload.input_tokens.mean(), rel=0.4)


def test_stale_gauges_are_those_of_their_last_reading():
    interval = 0.25
    stale, fresh = made(gauge_interval_s=interval), made()
    stale.reset(seed=3)
    fresh.reset(seed=3)
    rng = np.random.default_rng(0)
    differ, done = 0, False
    while not done:
        ours, exact = stale.state, fresh.state
        age = ours.now_s - ours.gauges_s
        assert 0 <= age <= interval + 1e-9
        assert (ours.gauges_s / interval) == pytest.approx(round(ours.gauges_s / interval), abs=1e-6)
        np.testing.assert_array_equal(ours.in_flight["index"], exact.in_flight["index"])
        differ += not np.array_equal(ours.engines["num_running"], exact.engines["num_running"])
        action = int(rng.integers(3))
        _, _, terminated, truncated, _ = stale.step(action)
        fresh.step(action)
        done = terminated or truncated
    assert differ > 20
    assert stale.records().to_frame().equals(fresh.records().to_frame())


def conversations(path, num_requests=80, turns=8):
    """A trace of prompts that grow by two blocks of 64 tokens from turn to turn."""
    ids = [[1000 * (i // turns) + b for b in range(2 * (i % turns + 1))] for i in range(num_requests)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
    workload = Workload(
        arrival_s=np.arange(num_requests) * 0.5,
        input_tokens=np.array([64 * len(row) for row in ids]),
        output_tokens=np.full(num_requests, 20),
        hash_offsets=offsets,
        hash_ids=np.concatenate(ids),
        hash_block_tokens=64,
    )
    return WorkloadSpec(name="file", path=str(write_trace(workload, path)), split="all")


def test_prefix_caches_show_what_an_engine_would_not_compute_again(tmp_path):
    fleet = FleetConfig(groups=(GroupSpec(H100, 2),), prefix_caching=True)
    env = make_env("routing", workload=conversations(tmp_path / "chat.parquet"), cluster=fleet, split="all")
    hits, compared = 0, 0
    predicted_hit = {}
    observation, _ = env.reset(seed=0)
    done = False
    while not done:
        request = env.state.request
        assert (request.cached_tokens <= request.input_tokens).all()
        shown = request.cached_tokens / request.input_tokens
        np.testing.assert_allclose(
            observation["places"][:, PLACE_FEATURES.index("prefix_hit")], shown, rtol=1e-6
        )
        target = int(np.argmax(request.cached_tokens))
        predicted_hit[request.index] = int(request.cached_tokens[target])
        hits += predicted_hit[request.index] > 0
        observation, _, terminated, truncated, _ = env.step(target)
        done = terminated or truncated
    cached = env.records().cached_tokens
    for index, tokens in predicted_hit.items():
        compared += 1
        assert cached[index] == tokens or tokens == env.records().input_tokens[index]
    assert hits == 70
    assert compared == 80


def test_a_router_that_nobody_tells_expects_what_it_has_sent(tmp_path) -> None:
    """The same prompt four times: expected where it was sent within the last 120 s, whatever is cached."""
    workload = Workload(
        arrival_s=[0.0, 1.0, 2.0, 200.0],
        input_tokens=[512] * 4,
        output_tokens=[4] * 4,
        hash_offsets=[0, 1, 2, 3, 4],
        hash_ids=[7] * 4,
    )
    file = str(write_trace(workload, tmp_path / "repeated.parquet"))
    fleet = FleetConfig(groups=(GroupSpec(H100, 2),), prefix_caching=True)
    seen = {}
    for index in ("exact", "sent"):
        env = made(
            workload=WorkloadSpec(name="file", path=file, split="all"), cluster=fleet, prefix_index=index
        )
        env.reset(seed=0)
        seen[index] = []
        for chosen in (0, 1, 1, 0):
            seen[index].append(env.state.request.cached_tokens.tolist())
            env.step(chosen)
    assert seen["sent"] == [[0, 0], [496, 0], [496, 496], [0, 0]]
    assert seen["exact"] == [[0, 0], [496, 0], [496, 496], [496, 496]]


def test_an_unknown_index_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix_index"):
        made(prefix_index="sents")
