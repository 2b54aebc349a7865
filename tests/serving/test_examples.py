"""The examples of policies in other stacks, each with `runners.serve` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import runpy

import pytest

from tests.paths import ROOT

EXAMPLES = ROOT / "examples/serve"
ROUTING = (
    "dynamo_router",
    "endpoint_picker",
    "latency_predictor",
    "production_stack",
    "ray_serve",
    "rollout_routers",
)
HERE = "isolate=false"  # the policy in the serving process, which starts sooner
TWO = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 2}]"


def example(name):
    return runpy.run_path(str(EXAMPLES / name / "run.py"))


def test_requests_go_through_the_proxy_where_the_picker_says():
    words = ("policy=round_robin", TWO, HERE)
    summary, exchanges = asyncio.run(example("endpoint_picker")["run"](None, 20, 40.0, words=words))
    assert (summary["requests"], summary["complete"], summary["status"]) == (20, 20, {200: 20})
    assert sorted(summary["sent_to"].values()) == [10, 10]
    assert all(exchange["picked_s"] >= exchange["arrival_s"] for exchange in exchanges)


def test_the_recorded_exchange_is_answered_again():
    record = json.loads((EXAMPLES / "endpoint_picker/recorded.json").read_text())
    picker = example("endpoint_picker")
    came = asyncio.run(picker["replay"](record, 4.0, (*picker["WORDS"], HERE)))
    assert came["exchanges"] == came["picked"] >= 60
    assert sum(came["sent_to"].values()) == came["exchanges"]
    assert set(came["sent_to"]) == {0, 1}


def test_latencies_are_learned_from_what_the_picker_observes():
    came = asyncio.run(example("latency_predictor")["run"](600))
    assert (came["observations"], came["asked"]) == (500, 100)
    assert max(came["median_relative_error"].values()) < 0.15


def test_conversations_through_the_selection_service():
    router = example("dynamo_router")
    came = asyncio.run(router["run"](30, (*router["WORDS"], HERE)))
    assert (came["requests"], came["left_at_the_end"]) == (30, 0)
    assert min(came["sent_to"].values()) > 0
    assert came["mean_overlap"] > 0.4  # two turns of three go on where the one before was


@pytest.mark.parametrize("name", ROUTING)
def test_every_example_says_what_the_policy_sees(name):
    page = (EXAMPLES / name / "README.md").read_text()
    assert "| the policy sees |" in page or "| trainer |" in page or "| of the contract |" in page
    assert "issing" in page
