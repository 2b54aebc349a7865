"""The commands of docs/live.md are short, of requests that the tiny model takes, and show their decisions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from serving_gym.envs.live.tiny_model import LONGEST
from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import EvaluateConfig, SimulateConfig
from serving_gym.runners.live.expectation import duration, expectation, say_expected, traffic_s
from serving_gym.runners.live.gap import USUAL_RIVALS
from serving_gym.runners.rollouts.rollout import run_episode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "live.md"
LONGEST_S = 180.0


def examples() -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").split("## Examples")[1].split("\n## ")[0]
    joined = re.sub(r"\\\n\s+", "", section)
    return [shlex.split(line)[2:] for line in joined.splitlines() if line.strip().startswith("python -m")]


@pytest.mark.parametrize("words", examples(), ids=lambda words: words[1])
def test_an_example_is_short_and_serves_what_it_is_sent(words: list[str]) -> None:
    command, *rest = words
    if command == "runners.simulate":
        streamed = composed("simulate", SimulateConfig, rest)
        workload = WorkloadSource(streamed.workload).sample(streamed.seed)
        assert traffic_s(workload, 1.0) <= LONGEST_S
        assert (workload.input_tokens + workload.output_tokens).max() <= LONGEST
        return
    config = composed("evaluate", EvaluateConfig, rest)
    policies = 1 + len(config.rivals or USUAL_RIVALS[config.env["name"]])
    runs = policies * config.repeats if config.backend.name == "both" else 1
    env = config.environment.make()
    episode = run_episode(env, load_policy(config.policy, config.env["name"]), config.first_seed)
    assert config.seeds * runs * episode.records.arrival_s.max() <= LONGEST_S
    assert episode.metrics["completed"] == len(episode.records)
    if config.backend.launch:
        assert (episode.records.input_tokens + episode.records.output_tokens).max() <= LONGEST
    assert len({str(action) for action in episode.actions if action not in (None, [])}) >= (
        1 if config.env["name"] == "autoscaling" else 2
    )


def test_the_expected_length_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    config = composed("evaluate", EvaluateConfig, ["experiment=live_routing", "policy=jsq"])
    say_expected(config, 2, "seeds")
    said = capsys.readouterr().out
    assert re.search(r"live: 2 episodes of about 160 requests in \d\d s: \d\d s of traffic", said)
    config = composed("evaluate", EvaluateConfig, ["experiment=live_autoscaling", "policy=hpa_kv"])
    say_expected(config, 1, "seeds")
    assert re.search(
        r"live: 1 episode of about \d{3} requests in 2 min: 2 min of traffic", capsys.readouterr().out
    )
    line = expectation("it", 152_000.0, "seeds")
    assert "42.2 h of traffic" in line
    assert line.endswith("; seeds shorten it")
    assert [duration(seconds) for seconds in (90.0, 300.0, 9000.0)] == ["90 s", "5 min", "2.5 h"]
