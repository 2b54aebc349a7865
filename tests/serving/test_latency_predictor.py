"""The latency predictor as llm-d's own tests and the Go client of the endpoint picker call it."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from datetime import datetime

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from serving_gym.runners.serving.latency_predictor import LatencyPredictor
from tests.defaults import make_env
from tests.serving.standin import StandIn

# The Go client's PredictionRequest, as it is marshalled.
REQUEST = {
    "kv_cache_percentage": 0.5,
    "input_token_length": 200,
    "num_request_waiting": 4,
    "num_request_running": 1,
    "num_tokens_generated": 4,
    "prefix_cache_score": 0.7,
}


@pytest.fixture(scope="module")
def env():
    return make_env("routing")


@asynccontextmanager
async def listening(env, policy, token=None, **params):
    service = StandIn(env, (), None)
    service.config.token = token
    service.config.policy = {"name": policy, "params": params}
    service.registry = CollectorRegistry()
    listener = LatencyPredictor(service, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(await listener.start()) as client:
            yield client, listener
    finally:
        await listener.stop()


async def post(client, path, body, status=200):
    async with client.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def get(client, path, status=200):
    async with client.get(path) as response:
        assert response.status == status
        return await response.json()


def entry(number, drawn):
    """A training sample of llm-d's tests/test_training_server.py, by its equations."""
    waiting, running, kv = number % 10 + 1, 1, 0.5
    length, prefix = 10 * number, drawn.uniform(0.1, 0.9)
    return {
        "kv_cache_percentage": kv,
        "input_token_length": length,
        "num_request_waiting": waiting,
        "num_request_running": running,
        "actual_ttft_ms": length * 2.0 + waiting * 3.0 + running * 4.0 + kv * 50.0 + prefix * 30.0 + 95,
        "actual_tpot_ms": kv * 100.0 + length * 0.5 + waiting * 1.0 + running * 5.0 + 9,
        "num_tokens_generated": waiting,
        "prefix_cache_score": prefix,
        "timestamp": "2026-01-01T00:00:00Z",
    }


def test_it_learns_the_equations_of_llm_ds_own_test(env):
    async def learn():
        async with listening(env, "predicted_latency", retrain_s=0.1, quantile=0.0) as (client, _):
            assert (await get(client, "/healthz"))["status"] == "ok"
            await get(client, "/readyz", 503)
            assert not (await get(client, "/status"))["is_ready"]
            assert (await post(client, "/predict", REQUEST, 503))["detail"] == "Models not ready"
            drawn = random.Random(0)
            entries = [entry(number, drawn) for number in range(1, 241)]
            accepted = await post(client, "/add_training_data_bulk", {"entries": entries}, 202)
            assert accepted["message"] == "Accepted 240 training samples."
            for _ in range(400):
                if (await get(client, "/status"))["is_ready"]:
                    break
                await asyncio.sleep(0.05)
            await get(client, "/readyz")
            answer = await post(client, "/predict", REQUEST | {"input_token_length": 1200})
            assert answer["ttft_ms"] == pytest.approx(2557, rel=0.15)  # 2400 + 12 + 4 + 25 + 21 + 95
            assert answer["tpot_ms"] == pytest.approx(668, rel=0.15)  # 50 + 600 + 4 + 5 + 9
            assert (answer["model_type"], answer["objective_type"]) == ("lightgbm", "mean")
            datetime.fromisoformat(answer["predicted_at"])
            datetime.fromisoformat(answer["last_model_load"])
            longer = [REQUEST | {"input_token_length": length} for length in (100, 500, 1500)]
            bulk = await post(client, "/predict/bulk/strict", {"requests": longer})
            ttfts = [one["ttft_ms"] for one in bulk["predictions"]]
            assert ttfts == sorted(ttfts)
            counts = [
                bulk[name] for name in ("total_requests", "successful_predictions", "failed_predictions")
            ]
            assert counts == [3, 3, 0]
            assert (await post(client, "/predict/bulk", {"requests": longer}))["errors"] == []
            async with client.get("/metrics") as page:
                assert 'training_samples_count{model="ttft"} 240' in await page.text()
            flushed = await post(client, "/flush", {})
            assert flushed["ttft_training_samples_flushed"] == 240
            await get(client, "/readyz", 503)

    asyncio.run(learn())


def test_samples_of_one_latency_alone_count_for_it_alone(env):
    async def add():
        async with listening(env, "predicted_latency") as (client, _):
            entries = [entry(5, random.Random(0)) | {"actual_tpot_ms": 0.0}, entry(6, random.Random(0))]
            await post(client, "/add_training_data_bulk", {"entries": entries}, 202)
            kept = (await get(client, "/data/status"))["training_data"]
            assert (kept["ttft_samples"], kept["tpot_samples"]) == (2, 1)
            await post(
                client, "/add_training_data_bulk", {"entries": []}, 202
            )  # the Go client's test sends none

    asyncio.run(add())


def test_the_profile_answers_from_the_start_and_grows_with_load(env):
    async def ask():
        async with listening(env, "predicted_latency_profile") as (client, _):
            await get(client, "/readyz")
            rows = [
                REQUEST | {"num_request_running": 0, "num_request_waiting": 0, "kv_cache_percentage": 0.0},
                REQUEST | {"num_request_waiting": 0},
                REQUEST | {"num_request_running": 60, "prefill_tokens_in_flight": 20_000},
            ]
            got = (await post(client, "/predict/bulk/strict", {"requests": rows}))["predictions"]
            assert [one["ttft_ms"] for one in got] == sorted(one["ttft_ms"] for one in got)
            assert [one["tpot_ms"] for one in got] == sorted(one["tpot_ms"] for one in got)
            assert 1 < got[0]["tpot_ms"] < 100
            many = (await post(client, "/predict/bulk/strict", {"requests": rows[:1] * 1000}))["predictions"]
            assert many[999]["ttft_ms"] == got[0]["ttft_ms"]
            less = await post(client, "/predict", REQUEST | {"prefix_cache_score": 1.0})
            assert less["ttft_ms"] < (await post(client, "/predict", REQUEST))["ttft_ms"]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/predict", [], "must be an object"),
        ("/predict", {}, "kv_cache_percentage is missing"),
        ("/predict", REQUEST | {"kv_cache_percentage": 1.5}, r"must lie in \[0, 1\], got 1.5"),
        ("/predict", REQUEST | {"num_request_waiting": "3"}, "must be a number, got '3'"),
        ("/predict", REQUEST | {"pod_type": "decoder"}, "decode"),
        ("/predict/bulk/strict", {"requests": []}, "1 to 10000"),
        ("/predict/bulk", {"requests": [REQUEST, {}]}, r"requests\[1\].kv_cache_percentage is missing"),
        ("/add_training_data_bulk", {"entries": [REQUEST]}, "actual_ttft_ms is missing"),
        ("/add_training_data_bulk", {}, "entries must be a list"),
    ],
)
def test_bad_requests_are_422_with_a_sentence(env, path, body, reason):
    async def ask():
        async with listening(env, "predicted_latency_profile") as (client, _):
            answer = await post(client, path, body, 422)
            with pytest.raises(ValueError, match=reason):
                raise ValueError(answer["detail"])

    asyncio.run(ask())


def test_a_token_is_asked_for_where_there_is_one(env):
    async def ask():
        async with listening(env, "predicted_latency_profile", token="a token of sixteen") as (client, _):
            assert (await post(client, "/predict", REQUEST, 401))[
                "detail"
            ] == "the bearer token is missing or wrong"
            await get(client, "/readyz")
            client.headers["Authorization"] = "Bearer a token of sixteen"
            await post(client, "/predict", REQUEST)
            await get(client, "/nowhere", 404)

    asyncio.run(ask())


def test_other_policies_predict_nothing(env):
    service = StandIn(env, (), None)
    service.config.policy = {"name": "jsq"}
    with pytest.raises(
        ValueError, match="needs policy=predicted_latency or policy=predicted_latency_profile, got jsq"
    ):
        LatencyPredictor(service, "127.0.0.1", 0)
