"""Policies, workloads and environments from outside the tree, by path, by name and by config folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving_gym.baselines import outside as policies_outside
from serving_gym.baselines.fit import environments_of
from serving_gym.baselines.registry import make_policy, policy_names, policy_tunables
from serving_gym.envs import registration
from serving_gym.envs.workload import outside as workloads_outside
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.runners import compare, evaluate, tune
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import is_pattern, load_policy, policy_config
from serving_gym.runners.configuration.schema import CompareConfig
from serving_gym.runners.configuration.words import quoted

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_policy"
OWN = "./fewest_tokens.py:FewestTokensPolicy"
TINY = ["env=routing", "workload.num_requests=40", "seeds=2", "plots=false"]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example elsewhere, as the current folder, with an `envs` package of the user's own."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLE, folder)
    (folder / "envs").mkdir()
    (folder / "envs" / "__init__.py").write_text("MINE = True\n")
    monkeypatch.chdir(folder)
    return folder


def said_by(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What `runners.compare` says as it fails."""
    assert compare.main([*TINY, *words, "out=out"]) == USER_ERROR
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    return said


def test_a_file_and_a_config_folder_stand_beside_three_baselines(own_folder: Path) -> None:
    names = ["jsq", "least_request", "round_robin", OWN, "prompts_only"]
    words = ["--config-dir", "configs", *TINY, "workload=evening", f"policies=[{','.join(names)}]", "out=out"]
    assert compare.main(words) == 0
    comparison = json.loads((own_folder / "out" / "comparison.json").read_text())
    assert list(comparison["policies"]) == names
    assert comparison["workload"] == "azure_conv_fitted"
    returns = {name: entry["metrics"]["return"]["iqm"] for name, entry in comparison["policies"].items()}
    assert returns[OWN] != returns["prompts_only"]


def test_constants_on_the_command_line(own_folder: Path) -> None:
    words = [*TINY[:3], f"policy={OWN}", "policy.params.output_weight=0.5", "out=out"]
    assert evaluate.main(words) == 0
    assert json.loads((own_folder / "out" / "summary.json").read_text())["policy"] == OWN
    assert policy_config(OWN) == {"name": OWN, "params": {"output_weight": 1.0}}


def test_the_search_path_of_hydra_names_the_folder_too(own_folder: Path) -> None:
    words = [f"hydra.searchpath=[file://{own_folder}/configs]", *TINY, "policies=[prompts_only]", "out=out"]
    assert compare.main(words) == 0
    assert "SERVING_GYM_CONFIG_PATH" not in os.environ


def test_a_folder_that_hides_ours_is_refused(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_folder / "configs" / "policy" / "jsq.yaml").write_text("name: jsq\n")
    assert "jsq.yaml' has the name of a config of serving-gym" in said_by(["--config-dir=configs"], capsys)
    assert "no config folder 'absent'" in said_by(["--config-dir=absent"], capsys)


def test_another_process_can_unpickle_it(own_folder: Path) -> None:
    policy = make_policy(OWN, output_weight=0.25)
    (own_folder / "policy.pkl").write_bytes(pickle.dumps(policy))
    code = "import pickle; print(pickle.load(open('policy.pkl', 'rb')).output_weight)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "0.25", done.stderr


def test_a_module_is_found_in_the_current_folder(own_folder: Path) -> None:
    (own_folder / "my_package_of_tests").mkdir()
    shutil.copy("fewest_tokens.py", own_folder / "my_package_of_tests" / "mine.py")
    policy = load_policy("my_package_of_tests.mine:FewestTokensPolicy", "routing")
    assert environments_of(policy) == ("routing",)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "name, clairvoyant = 'x', False\n    def reset(self, spec, seed): ...",
            "no method act(observation, state)",
        ),
        (
            "name, clairvoyant = 'x', False\n    def act(self, observation, state): ...",
            "no method reset(spec, seed)",
        ),
        (
            "name = 'x'\n    def reset(self, spec, seed): ...\n    def act(self, o, s): ...",
            "no attribute clairvoyant",
        ),
        (
            "name, clairvoyant = 'x', False\n    def reset(self, spec, seed): ...\n    def act(self, o): ...",
            "its method act must take act(observation, state)",
        ),
        ("name = (", "line 2: '(' was never closed"),
        ("import absent_package", "No module named 'absent_package'"),
    ],
)
def test_what_is_no_policy_is_refused_by_what_it_lacks(
    body: str, said: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_folder / "bad.py").write_text(f"class Bad:\n    {body}\n")
    assert said in said_by(["policies=[./bad.py:Bad]"], capsys)


def test_mistyped_names(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'FewestTokensPolicy'?" in said_by(
        ["policies=[./fewest_tokens.py:FewestTokens]"], capsys
    )
    assert "no file './absent.py'" in said_by(["policies=[./absent.py:X]"], capsys)
    assert "there is no such file" in said_by(["policies=[runs/absent]"], capsys)
    said = said_by(["policies=[jsq,least_requests]"], capsys)
    assert "did you mean 'least_request', " in said
    assert "(of env=routing)" in said
    assert "static" not in said


def test_policies_of_other_environments_are_refused_by_name(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_by(["env=dp_tp", f"policies=[static_dp,{OWN}]"], capsys)
    assert f"policy '{OWN}' does not fit env=dp_tp: it decides in env=routing" in said
    assert "policy 'static_tp' does not fit env=routing" in said_by(["policies=[jsq,static_tp]"], capsys)
    assert "'zoo/dp_tp' does not fit env=routing: it was trained in env=dp_tp" in said_by(
        ["policies=[zoo/dp_tp]"], capsys
    )
    assert not (own_folder / "out" / "comparison.json").exists()


def test_a_class_from_outside_declares_what_a_tuner_searches(own_folder: Path) -> None:
    text = Path("fewest_tokens.py").read_text()
    text += "\n    @staticmethod\n    def tunables():\n        return {'output_weight': (0.0, 2.0)}\n"
    Path("tunable.py").write_text(text)
    name = "./tunable.py:FewestTokensPolicy"
    assert policy_tunables(name) == {"output_weight": (0.0, 2.0)}
    assert policy_tunables(OWN) == {}
    words = ["env=routing", "workload.num_requests=40", "seeds=1", f"policy={OWN}", "out=out"]
    assert tune.main(words) == USER_ERROR


def test_sweep_folders_with_brackets_and_commas_can_be_named(own_folder: Path) -> None:
    for name in ("seed=[1,2]", "num_envs=8,seed=1", "num_envs=8,seed=2"):
        shutil.copytree(ROOT / "agents" / "zoo" / "routing", own_folder / "runs" / name)
    word = quoted("policies=[jsq,runs/seed=[1,2],runs/num_envs=8,seed=1]")
    config = composed("compare", CompareConfig, ["env=routing", word])
    assert config.compared == ("jsq", "runs/seed=[1,2]", "runs/num_envs=8,seed=1")
    assert not is_pattern("runs/seed=[1,2]")
    config = composed("compare", CompareConfig, ["env=routing", "policies=[runs/num_envs=8,seed=*]"])
    assert config.compared == ("runs/num_envs=8,seed=1", "runs/num_envs=8,seed=2")
    words = [*TINY[:3], "policy=runs/seed=[1,2]", "out=out"]
    assert evaluate.main(words) == 0
    assert json.loads((own_folder / "out" / "summary.json").read_text())["policy"] == "runs/seed=[1,2]"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with one entry point of each group."""
    info = tmp_path / "site" / "tests_of_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-of-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[serving_gym.policies]\nfewest = tests_of_plugins:FewestTokensPolicy\n"
        "[serving_gym.workloads]\nevening = tests_of_plugins:EVENING\nsteady = tests_of_plugins:steady\n"
        "[serving_gym.environments]\nrenamed = tests_of_plugins:register_renamed\n"
    )
    (tmp_path / "site" / "tests_of_plugins.py").write_text(
        (EXAMPLE / "fewest_tokens.py").read_text()
        + """

EVENING = {"name": "azure_conv_fitted", "rate_rps": 3.0}


def steady(num_requests=7):
    from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
    return WorkloadSource(WorkloadSpec("flying_bursty", num_requests=num_requests, split="all")).sample(0)


def register_renamed():
    from serving_gym.envs.registration import EnvEntry, register
    inside = "serving_gym.envs.routing"
    register("renamed", EnvEntry(
        "Tests/Renamed-v0", f"{inside}.env:RoutingEnv", f"{inside}.vector_env:RoutingVectorEnv",
        f"{inside}.config:RoutingConfig", ("jsq",), "RoutingState", "",
        choices={"cluster": "fleet_h100_x4", "workload": "azure_conv_fitted"},
    ))
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    caches = (
        policies_outside.policy_entry_points,
        workloads_outside.workload_entry_points,
        workloads_outside.outside_workload,
    )
    for each in caches:
        each.cache_clear()
    registration.register_envs()
    yield
    registration.ENVS.pop("renamed", None)
    for each in caches:
        each.cache_clear()


def test_entry_points(installed: None, tmp_path: Path) -> None:
    assert "fewest" in policy_names()
    assert make_policy("fewest", output_weight=2.0).name == "fewest_tokens"
    assert WorkloadSource(WorkloadSpec("evening", num_requests=5)).rate_rps == pytest.approx(3.0)
    assert WorkloadSource(WorkloadSpec("steady", params={"num_requests": 9})).max_input_tokens > 0
    config = composed("compare", CompareConfig, ["env=renamed", "workload=evening", "policies=[fewest,jsq]"])
    assert config.workload.rate_rps == 3.0
    assert config.cluster["groups"]
    words = ["env=renamed", "workload.num_requests=20", "seeds=1", "policies=[fewest,jsq]", "plots=false"]
    assert compare.main([*words, f"out={tmp_path}/out"]) == 0
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["env"] == "renamed"
