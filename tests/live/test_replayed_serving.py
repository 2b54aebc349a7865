"""Decision logs of served policies, replayed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from serving_gym.runners import evaluate, monitor, replay
from serving_gym.runners.configuration.compose import compose_words, composed
from serving_gym.runners.html.report import write_report
from serving_gym.runners.replaying.log import Assignment
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.service import PolicyService
from tests.commands.test_report import check_page, headings
from tests.live.fake_server import Behaviour, FakeServer

ROUTING = ["env=routing", "cluster=fleet_h100_x4", "workload.num_requests=240", "workload.rate_scale=4"]
SHARE = 0.5
BIG: dict[str, Any] = {
    "num_blocks": 10**6,
    "max_model_len": 10**6,
    "token_s": 0.0,
}  # a server that holds any request


def serve(out: Path, words: list[str], steps: int) -> None:
    """Lets a served policy decide in simulation, beside a front end with round robin, and keeps its log."""
    given = [*words, "isolate=false", f"share={SHARE}"]
    config = composed("serve", ServeConfig, given)
    object.__setattr__(config, "out", str(out))
    service = PolicyService.of(config)
    env = config.environment.make().unwrapped

    async def run() -> None:
        env.reset(seed=1)
        for step in range(steps):
            chosen: Any = {"kind": "dispatch", "place": step % 4} if config.env["name"] == "routing" else None
            answer = await service.decide(env.state, chosen)
            await asyncio.sleep(0)
            action = answer.decision if answer.applies else None if chosen is None else chosen["place"]
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break

    asyncio.run(run())
    service.close()
    folder = out / ".hydra"
    folder.mkdir(exist_ok=True)
    setting = {word.partition("=")[0]: word.partition("=")[2] for word in given}
    folder.joinpath("config.yaml").write_text(
        yaml.safe_dump({"mode": setting.get("mode", "live"), "share": SHARE})
    )


def test_a_canary_of_the_routing_policy(tmp_path: Path) -> None:
    serve(tmp_path, [*ROUTING, "policy=jsq", "mode=canary"], 240)
    words = [str(tmp_path / "decisions.jsonl"), *ROUTING, "policies=[jsq,round_robin]"]
    assert replay.main([*words, f"out={tmp_path / 'replay'}"]) == 0
    found = json.loads((tmp_path / "replay" / "replay.json").read_text())
    assert found["decisions"] == 240
    assert found["cost"]["source"] == "requests in flight in the states"
    assert found["with_cost"] > 150
    policies = found["policies"]
    assert set(policies) == {"jsq", "round_robin", "policy as served", "fallback as served"}
    # The same policy chooses as it did when it was served, and a half of its choices were followed.
    assert policies["jsq"]["agreement"] == policies["policy as served"]["agreement"]
    assert 0.4 < policies["jsq"]["agreement"] < 0.9
    assert found["random_decisions"] > 60
    assert policies["jsq"]["supported_ratio"] == pytest.approx(1.0, abs=0.25)
    assert policies["policy as served"]["over"]["policy"] == "fallback as served"
    assert policies["jsq"]["gain"]["ips"] is not None
    assert found["twin"]["policies"]["jsq"]["value"] > 0
    page = check_page(write_report(tmp_path / "replay"))
    assert headings(page) == ["The log", "Estimated gains"]
    assert "compared with the logged places" in found["twin"]["described"]


def test_the_monitor_estimates_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(tmp_path, [*ROUTING, "policy=jsq", "mode=canary"], 240)
    with FakeServer() as server:
        words = [server.url, f"log={tmp_path}", "once=true", "interval_s=0.2", f"out={tmp_path / 'watched'}"]
        assert monitor.main(words) == 2
        assert "has no configuration of runners.serve" in capsys.readouterr().err
        config = compose_words(
            "serve", ServeConfig, [*ROUTING, "policy=jsq", "mode=canary", f"share={SHARE}"]
        )
        config.out = "unused"
        (tmp_path / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
        assert monitor.main(words) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "Gain over the fallback rule (doubly robust, the newest 240 decisions" in said
    summary = json.loads((tmp_path / "watched" / "summary.json").read_text())
    assert summary["gain"]["policies"]["policy as served"]["over"]["policy"] == "fallback as served"
    page = check_page(write_report(tmp_path / "watched"))
    assert headings(page) == ["Engines", "Policies"]
    assert "Gain over the fallback rule" in page


def test_a_run_on_live_servers_is_logged_and_replayed(tmp_path: Path) -> None:
    with FakeServer(Behaviour(**BIG)) as one, FakeServer(Behaviour(**BIG)) as other:
        words = [
            "env=routing",
            "policy=jsq",
            "cluster=fleet_h100_x4",
            "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 2}]",
            "workload.num_requests=80",
            "workload.rate_scale=20",
            "seeds=1",
            "backend=vllm",
            f"backend.endpoints=[{one.url},{other.url}]",
            "backend.decide_within_s=null",
            "log_states=true",
            "explore=0.5",
            "report=true",
        ]
        assert evaluate.main([*words, f"out={tmp_path}"]) == 0
    check_page(tmp_path / "report.html")
    assert replay.main([str(tmp_path), "policies=[jsq,round_robin]", f"out={tmp_path / 'replay'}"]) == 0
    found = json.loads((tmp_path / "replay" / "replay.json").read_text())
    assert found["decisions"] == found["with_cost"] == found["random_decisions"] == 80
    assert found["cost"]["source"] == "requests.parquet"
    assert found["policies"]["jsq"]["agreement"] > 0.5
    assert "compared with jsq in simulation" in found["twin"]["described"]


def test_a_live_policy_rests_on_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(tmp_path, [*ROUTING, "policy=jsq"], 240)
    words = [str(tmp_path), *ROUTING, "policies=[round_robin]", "twin=false"]
    assert replay.main([*words, f"out={tmp_path / 'replay'}"]) == 0
    assert "rests on the model alone" in capsys.readouterr().out.replace("\n", " ")
    found = json.loads((tmp_path / "replay" / "replay.json").read_text())
    assert found["policies"]["round_robin"]["gain"]["ips"] is None
    assert found["policies"]["policy as served"]["agreement"] == 1.0


def test_other_environments_have_agreement(tmp_path: Path) -> None:
    words = ["env=dp_tp", "cluster=nemotron_8b_h200"]
    serve(tmp_path, [*words, "policy=flying_serving"], 40)
    given = [str(tmp_path), *words, "policies=[static_dp,flying_serving]"]
    assert replay.main([*given, f"out={tmp_path / 'replay'}"]) == 0
    found = json.loads((tmp_path / "replay" / "replay.json").read_text())
    assert found["policies"]["flying_serving"]["agreement"] == 1.0
    assert found["with_cost"] == 0
    assert "no costs" in found["note"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"applied": True, "chosen": {"place": 1}}, 0.25),
        ({"applied": False, "chosen": {"place": 1}}, 0.75),
        ({"applied": False, "chosen": {"place": 0}}, 1.0),
        ({"applied": False, "chosen": None}, np.nan),
        ({"applied": True, "chosen": None}, 0.25),
    ],
)
def test_propensities_of_a_canary(line: dict[str, Any], expected: float) -> None:
    whole = {"by": "policy", "action": {"place": 0}, "propensity": None, **line}
    assert Assignment("canary", 0.25).propensity(whole) == pytest.approx(expected, nan_ok=True)


def test_a_broken_log_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "decisions.jsonl"
    words = [str(file), "policies=[jsq]", f"out={tmp_path / 'out'}"]
    for text, said in (
        ("{\n", "line 1 is not JSON"),
        ('{"env": "routing"}\n', "has no state"),
        ('{"env": "sharing", "state": {}, "action": null}\n', "env=sharing, not env=routing"),
        ('{"env": "routing", "state": {"request": {}}, "action": null}\n', "is it another cluster's log?"),
        ('{"env": "routing", "state": null, "action": null}\n', "no decision of env=routing"),
    ):
        file.write_text(text)
        assert replay.main(words) == 2
        assert said in capsys.readouterr().err
