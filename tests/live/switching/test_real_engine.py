"""The plugin inside the real engine on this machine's CPU, two ranks: what an engine without it would have answered.

Run with `SERVING_GYM_VLLM_PYTHON=/path/to/python python -m pytest -m vllm tests/live/switching`; that Python needs vLLM
0.32 (CPU build). Four engines are started one after the other, some ten minutes on two cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving_gym.envs.dp_tp.config import DEFAULT_SLOS
from serving_gym.envs.dp_tp.live.env import LiveDPTPEnv
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import SetLayout, SwitchMode
from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.live.launch_settings import PYTHON_VARIABLE
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.switching.install import arguments, environment, install
from serving_gym.envs.live.switching.launch import SwitchingLaunchSettings, switching_server
from serving_gym.envs.workload.registry import WorkloadSpec

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} names no Python with vLLM"
    ),
]

DRIVER = Path(__file__).with_name("engine.py")
CUT_OVER_S = 0.05
OURS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

Found = dict[str, Any]


def drive(*words: str, **variables: str) -> None:
    """Runs the driver in the Python with vLLM."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [os.environ[PYTHON_VARIABLE], str(DRIVER), *words]
    result = subprocess.run(
        command, env=inherited | OURS | variables, capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switching")


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, list[int]]:
    """Tokens of every request, from an engine without the plugin."""
    drive("make", str(folder / "model"))
    drive("plain", str(folder / "model"), str(folder / "plain.json"))
    tokens: dict[str, list[int]] = json.loads((folder / "plain.json").read_text())["tokens"]
    return tokens


@pytest.fixture(scope="module")
def found(folder: Path, plain: dict[str, list[int]]) -> Found:
    """What the engine with the plugin did."""
    return with_plugin("two", 2, folder)


def engine_words(ranks: int) -> dict[str, Any]:
    """The server's options as keyword arguments of `vllm.LLM`."""
    options = arguments(ranks)
    words: dict[str, Any] = {"async_scheduling": False, "enable_prefix_caching": False, "enforce_eager": True}
    for name, value in zip(options[:-3:2], options[1:-3:2], strict=True):
        words[name.removeprefix("--").replace("-", "_")] = value
    words["additional_config"] = json.loads(words["additional_config"])
    return words | {"tensor_parallel_size": ranks}


def with_plugin(what: str, ranks: int, folder: Path, **variables: str) -> Found:
    """Runs the scenarios of some ranks."""
    site, words, sink = install(folder / "site"), json.dumps(engine_words(ranks)), folder / f"{what}.json"
    drive(what, str(folder / "model"), str(sink), words, **environment(site), **variables)
    loaded: Found = json.loads(sink.read_text())
    return loaded


@pytest.fixture(scope="module")
def done(found: Found) -> dict[int, Found]:
    """Reports of all switches, by number."""
    return {report["number"]: report for report in found["status"]["done"]}


@pytest.mark.parametrize("mode", ["tp2", "dp", "tp2_again"])
def test_tokens_are_those_of_an_engine_without_the_plugin(found: Found, plain: Found, mode: str) -> None:
    tokens = found["each_mode"][mode]
    assert len(tokens) == 13
    assert tokens == {name: plain[name] for name in tokens}


@pytest.mark.parametrize(
    "scenario", ["sequential_merge", "hard_merge", "hard_split", "soft_merge", "hurried", "long_context"]
)
def test_tokens_are_the_same_across_every_switch(found: Found, plain: Found, scenario: str) -> None:
    tokens = found[scenario]["tokens"]
    assert tokens
    assert tokens == {name: plain[name] for name in tokens}


def test_ranks_in_dp_run_different_batches_at_the_same_time(found: Found) -> None:
    left, right = ([b for b in batches if b["group"][1] == 1] for batches in found["each_mode"]["batches"])
    of_left, of_right = ({name for batch in side for name in batch["requests"]} for side in (left, right))
    assert of_left
    assert of_right
    assert not of_left & of_right
    assert len(of_left | of_right) == 13
    assert [batch["tokens"] for batch in left] != [batch["tokens"] for batch in right]
    together = sum(
        min(a["ended_s"], b["ended_s"]) > max(a["began_s"], b["began_s"]) for a in left for b in right
    )
    assert together > 10
    # neither waits for the other: the pace differs
    shared = sum(any(a["began_s"] <= b["began_s"] <= a["ended_s"] for b in right) for a in left)
    assert shared < len(left) + len(right)


def test_one_copy_of_the_weights_and_one_of_the_kv(found: Found) -> None:
    for memory in found["memory"]:
        assert memory["weight_bytes"] == memory["whole_weight_bytes"]
        assert memory["kv_buffers"] == 1
        apart, merged = memory["kv_shapes"]["1"], memory["kv_shapes"]["2"]
        assert merged == [apart[0], apart[1] // 2, apart[2] * 2, apart[3]]  # blocks of B * p tokens


def test_a_sequential_merge_drains(found: Found, done: dict[int, Found]) -> None:
    scenario = found["sequential_merge"]
    assert sorted(scenario["finished_first"]) == [f"greedy-{k}" for k in range(4)]
    assert scenario["draining"]["layout"] == [1, 1]
    assert scenario["draining"]["target_layout"] == [2]
    report = done[scenario["number"]]
    assert (report["paused"], report["recomputed"], report["queued"]) == (0, 0, 4)


def test_a_hard_merge_lets_requests_stand_still_with_their_kv(found: Found, done: dict[int, Found]) -> None:
    scenario = found["hard_merge"]
    assert scenario["stood"]
    report = done[scenario["merge"]]
    assert (report["paused"], report["recomputed"]) == (5, 0)
    left, right, both = scenario["merged"]["groups"]
    assert (left["status"], right["status"], both["status"]) == ("paused", "paused", "active")
    assert [left["kv_used_blocks"], right["kv_used_blocks"]] == scenario["held"][:2]
    held = [set(blocks) for blocks in scenario["blocks"]]
    assert held[0] | held[1] <= held[2]  # the group leaves their blocks alone
    assert both["kv_capacity_blocks"] == left["kv_capacity_blocks"] - len(held[0] | held[1])
    assert done[scenario["split"]]["recomputed"] == 2


def test_a_hard_split_recomputes(found: Found, done: dict[int, Found]) -> None:
    report = done[found["hard_split"]["number"]]
    assert (report["paused"], report["recomputed"], report["queued"]) == (0, 8, 13)


def test_a_soft_merge_serves_meanwhile(found: Found, done: dict[int, Found]) -> None:
    speculating = found["soft_merge"]["speculating"]["groups"]
    assert sorted(row["status"] for row in speculating[:2]) == ["draining", "speculative"]
    assert done[found["soft_merge"]["number"]]["recomputed"] > 0


def test_a_draining_switch_is_hurried_and_not_redirected(found: Found, done: dict[int, Found]) -> None:
    scenario = found["hurried"]
    assert scenario["refused"] == {
        "accepted": False, "reason": "ranks 0 to 1 are being reconfigured", "switches": []
    }  # fmt: skip
    assert scenario["early"] == []
    assert (done[scenario["number"]]["mode"], done[scenario["number"]]["paused"]) == ("hard", 2)


def test_what_no_rank_can_hold_waits_for_the_group(found: Found) -> None:
    assert found["long_context"]["apart"]["num_pooled"] == 1
    assert found["long_context"]["idle"]  # the engine does not spin meanwhile


def test_requests_end_from_outside_wherever_they_are(found: Found, plain: Found) -> None:
    tokens, after = found["aborted"]["tokens"], found["aborted"]["after"]
    for name in ("greedy-1", "greedy-2", "greedy-3"):
        assert tokens[name] == plain[name]
    assert len(tokens["greedy-0"]) < len(plain["greedy-0"])
    assert all(row["num_running"] == row["kv_used_blocks"] == 0 for row in after["groups"])
    assert after["num_pooled"] == 0


def check_storm(storm: Found, plain: Found) -> None:
    """Everybody was answered as by an engine that never switches, and nothing is left behind."""
    tokens, after = storm["tokens"], storm["after"]
    assert len(tokens) > 40
    assert {name for name in tokens if tokens[name] != plain[name.split("#")[0]]} == set()
    assert all(
        row["num_running"] == row["kv_used_blocks"] == row["num_waiting"] == 0 for row in after["groups"]
    )
    assert after["num_pooled"] == 0
    reports = after["done"]
    assert {report["mode"] for report in reports} == {"sequential", "soft", "hard"}
    assert sum(report["paused"] for report in reports) > 5
    assert sum(report["recomputed"] for report in reports) > 5


def test_a_storm_of_switches_changes_no_token(found: Found, plain: Found) -> None:
    check_storm(found["storm"], plain)


def test_errors_are_sentences(found: Found) -> None:
    assert [answer["reason"] for answer in found["errors"]] == [
        "layout (3,) does not add up to 2 ranks",
        "layout (1,) does not add up to 2 ranks",
        "mode must be one of sequential, soft, hard, got 7",
    ]


def test_the_cut_over_with_requests_queued_takes_less_than_50_ms(done: dict[int, Found]) -> None:
    cut_overs = [report["cut_over_s"] for report in done.values() if report["queued"] or report["paused"]]
    assert len(cut_overs) >= 5
    assert statistics.median(cut_overs) < CUT_OVER_S, cut_overs


# -- four ranks, two on each core --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_four(folder: Path, plain: dict[str, list[int]]) -> Found:
    return with_plugin("four", 4, folder, VLLM_CPU_OMP_THREADS_BIND="0|1|0|1")


@pytest.mark.parametrize("layout", ["4", "2+2", "2+1+1", "1+1+1+1"])
def test_tokens_of_four_ranks_in_every_layout(of_four: Found, plain: Found, layout: str) -> None:
    tokens = of_four["each_layout"][layout]
    assert len(tokens) == 13
    assert tokens == {name: plain[name] for name in tokens}


def test_a_storm_over_four_ranks_changes_no_token(of_four: Found, plain: Found) -> None:
    check_storm(of_four["storm"], plain)


def test_groups_stand_still_inside_groups(of_four: Found, plain: Found) -> None:
    standing = {int(turn): rows for turn, rows in of_four["nested"]["standing"].items()}
    assert {(first, length) for first, length, *_ in standing[1]} >= {(0, 1), (1, 1)}
    assert standing[4] == []
    assert all(count > 0 for rows in standing.values() for *_, count in rows)
    tokens = of_four["nested"]["tokens"]
    assert tokens == {name: plain[name] for name in tokens}
    for memory in of_four["memory"]:
        assert memory["weight_bytes"] == memory["whole_weight_bytes"]
        assert memory["kv_buffers"] == 1


# -- the environment ---------------------------------------------------------------------------------------------------

SPEC = ClusterSpec(
    num_gpus=2, model="llama-3.1-8b", gpu="H100", order="priority", router="affinity", max_num_seqs=16, block_size=32,
    max_num_batched_tokens=512, kv_blocks_override=511,
)  # fmt: skip


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[LiveDPTPEnv]:
    launch = SwitchingLaunchSettings(order="priority", router="affinity", site=str(install(folder / "site")))
    traffic = {
        "low_rate_rps": [4.0, 5.0],
        "burst_rate_rps": None,
        "input_tokens": [16, 300],
        "output_tokens": [4, 40],
    }
    with switching_server(launch, folder / "server") as server:
        env = LiveDPTPEnv(
            LiveSettings((server.url,)),
            cluster=SPEC,
            workload=WorkloadSpec("flying_bursty", num_requests=40, params=traffic),
            slos=DEFAULT_SLOS,
            decision_interval_s=0.5,
        )
        yield env
        env.close()


def test_an_episode_in_every_layout_and_mode(live: LiveDPTPEnv) -> None:
    observation, info = live.reset(seed=0)
    rng, over, layouts, moved = np.random.default_rng(0), False, set(), 0
    while not over:
        assert live.observation_space.contains(observation)
        layouts.add(live.state.layout)
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        observation, _, terminated, truncated, info = live.step(action)
        moved += info["reward_terms"]["switch"] < 0
        over = terminated or truncated
    assert terminated
    assert layouts == {(1, 1), (2,)}
    assert moved > 2
    assert (live.records().outcome == FINISHED).all()
    assert live.records().generated_tokens.tolist() == live.core.backend.workload.output_tokens.tolist()
    switches = live.core.backend.switches()[-moved:]
    assert statistics.median(switch["cut_over_s"] for switch in switches) < CUT_OVER_S


def test_state_under_load(live: LiveDPTPEnv) -> None:
    live.reset(seed=1)
    for _ in range(4):
        live.step(None)
    rows = live.state.engines
    assert rows["status"].tolist() == [EngineStatus.ACTIVE, EngineStatus.ACTIVE, EngineStatus.INACTIVE]
    assert (rows["kv_capacity_blocks"][:2] == 511).all()
    assert rows["generated_tokens"][:2].sum() > 0
    live.step(SetLayout((2,), SwitchMode.SEQUENTIAL))
    while live.state.transitions:
        live.step(None)
    assert live.state.layout == (2,)
