"""The commands on the routing environment, tiny episodes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from serving_gym.runners import compare, evaluate, tune
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.policies import CONFIG_DIR
from serving_gym.runners.configuration.schema import EvaluateConfig, register_schemas
from serving_gym.runners.configuration.typed import build

Main = Callable[[Sequence[str]], int]
TINY = ["env=routing", "workload.num_requests=60", "seeds=2"]
# Of fleets that serve several models or regions: requests must say which they ask for.
WORKLOADS = {
    "fleet_two_regions": ("workload=sageserve_tiers", "+workload.params.regions.east=1.0"),
    "fleet_sageserve": ("workload=sageserve_week",),
}
FLEETS = sorted(path.stem for path in (CONFIG_DIR / "cluster").glob("fleet_*.yaml"))


@pytest.mark.parametrize("fleet", FLEETS)
def test_every_fleet_makes_an_environment(fleet: str) -> None:
    register_schemas()
    words = ["env=routing", f"cluster={fleet}", "policy=jsq", "out=x", *WORKLOADS.get(fleet, ())]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        values = OmegaConf.to_container(compose("evaluate", overrides=words), resolve=True)
    assert isinstance(values, dict)
    env = build(EvaluateConfig, {str(key): value for key, value in values.items()}).environment.make()
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert info["action_mask"].any()


def test_evaluate(tmp_path: Path) -> None:
    words = ["policy=preserve", f"out={tmp_path}", "env.gauge_interval_s=0.5", *TINY]
    assert evaluate.main(words) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["policy"] == "preserve"
    assert summary["metrics"]["arrived"]["iqm"] == 60
    assert summary["metrics"]["gpu_hours"]["iqm"] > 0
    decisions = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert len(decisions) == 120
    assert {row["action"] for row in decisions} <= {0, 1, 2, 3}
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) == 120


def test_compare_takes_the_usual_policies_on_identical_arrivals(tmp_path: Path) -> None:
    assert compare.main([f"out={tmp_path}", "plots=false", *TINY]) == 0
    comparison = json.loads((tmp_path / "comparison.json").read_text())
    assert comparison["env"] == "routing"
    assert {"round_robin", "jsq", "preserve"} <= set(comparison["policies"])
    episodes = pd.read_parquet(tmp_path / "episodes.parquet")
    assert set(episodes["decisions"]) == {60}


def test_a_decision_with_commands_is_spelt_out_in_the_log(tmp_path: Path) -> None:
    narrow = "cluster.groups=[{replica:{model:llama-3.1-8b,gpu:H100,kv_blocks:1500},count:3}]"
    words = ["policy=llumnix", narrow, "workload.num_requests=400", "seeds=1", f"out={tmp_path}"]
    assert evaluate.main([TINY[0], *words]) == 0
    actions = [json.loads(line)["action"] for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    spelt = [action for action in actions if isinstance(action, dict)]
    assert all(action["command"] == "Dispatch" for action in spelt)
    assert all(set(command) == {"request", "place"} for action in spelt for command in action["commands"])
    assert spelt, "engines with little KV have something to migrate"


def test_tune(tmp_path: Path) -> None:
    words = ["policy=preserve", "evaluations=4", "split=validation", f"out={tmp_path}", *TINY]
    assert tune.main(words) == 0
    tuning = json.loads((tmp_path / "tuning.json").read_text())
    assert tuning["tuned"]["return"] >= tuning["before"]["return"]
    assert yaml.safe_load((tmp_path / "tuned.yaml").read_text())["name"] == "preserve"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policy=jsq", "cluster=gpt_oss_120b_h200"], "routing needs a fleet"),
        (["policy=static_dp"], "policy 'static_dp' does not fit env=routing: it decides in env=dp_tp"),
        (["policy=jsq", "env.gauge_interval_s=-1"], "gauge_interval_s must lie in"),
        (["policy=jsq", "env.prediction.name=presrve"], "did you mean 'preserve'"),
        (["policy=jsq", "env.queue_capacity=-3"], "queue_capacity must not be negative"),
        (["policy=jsq", "env.faults.crash_per_hour=2"], "crashes_per_hour"),
    ],
)
def test_mistakes(
    words: Sequence[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main([*TINY, *words, f"out={tmp_path}"]) == USER_ERROR
    assert said in capsys.readouterr().err


def test_admission_policies_go_with_any_router_in_commands(tmp_path: Path) -> None:
    """Verdicts are in the log, refusals in the metrics by class; there is no bound where requests may be refused."""
    words = ["experiment=routing_overload", "workload.num_requests=150", "seeds=2", "plots=false"]
    names = ["jsq", "token_bucket+least_request", "tier_shed"]
    assert compare.main([*words, f"policies=[{','.join(names)}]", f"out={tmp_path}"]) == 0
    comparison = json.loads((tmp_path / "comparison.json").read_text())
    assert list(comparison["policies"]) == names
    metrics = comparison["policies"]["tier_shed"]["metrics"]
    assert metrics["refused_share/sheddable"]["iqm"] > 0.5
    assert metrics["refused_share/critical"]["iqm"] == 0.0
    assert metrics["ttft_served_p90_s/critical"]["iqm"] > 0.0
    assert comparison["regret"]["bound"] is None or not comparison["regret"]["bound"]
    assert evaluate.main([*words[:3], "policy=tier_shed+jsq", f"out={tmp_path}/one"]) == 0
    lines = (tmp_path / "one/decisions.jsonl").read_text().splitlines()
    actions = [json.loads(line)["action"] for line in lines]
    assert {"command": "Reject"} in actions


def test_an_admission_policy_needs_the_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([f"out={tmp_path}", "policies=[tier_shed]", *TINY]) == USER_ERROR
    assert "policy 'tier_shed' decides about admission: set env.admission=true" in capsys.readouterr().err
