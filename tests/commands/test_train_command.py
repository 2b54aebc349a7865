"""`python -m runners.train` from the first word to the table, killed and resumed, with every tracker and agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from serving_gym.envs.registration import env_names
from serving_gym.runners import compare, evaluate, train
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import CONFIG_DIR
from serving_gym.runners.configuration.schema import register_command, register_schemas
from serving_gym.runners.configuration.train_config import TrainConfig, _differences, register_agents
from serving_gym.runners.training.loop import Training
from tests.tiers import full_except

BURSTY = "workload=flying_bursty"
TINY = [
    "env=dp_tp",
    "workload.num_requests=60",
    BURSTY,
    "num_envs=4",
    "validations=2",
    "validation_seeds=1",
    "seeds=2",
    "baselines=[static_dp]",
]
SMALL_PPO = [
    "agent=maskable_ppo",
    "agent.rollout_steps=16",
    "agent.batch_size=32",
    "agent.epochs=1",
    "agent.network.hidden_widths=[16]",
]


def rows_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def evaluated(words: list[str], out: Path) -> dict:
    assert evaluate.main([*words, "workload.num_requests=60", f"out={out}"]) == 0
    return json.loads((out / "summary.json").read_text())["metrics"]


def failure(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert train.main(words) == USER_ERROR
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1, said
    return said


def test_every_agent_composes():
    register_schemas()
    register_command("train", TrainConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        for file in (CONFIG_DIR / "agent").glob("*.yaml"):
            if file.stem != "default":
                assert compose("train", overrides=[f"agent={file.stem}"]).agent.name == file.stem


@pytest.mark.parametrize("env", env_names())
def test_every_environment_has_an_agent_of_its_own_where_none_is_named(env):
    register_agents()
    words = [(f"env={env}", "out=unused"), (f"env={env}", "agent=dqn", "out=unused")]
    default, named = (composed("train", TrainConfig, each).agent_config.name for each in words)
    assert default == {"dp_tp": "api", "routing": "api", "deployment": "portfolio"}.get(env, "maskable_ppo")
    assert named == "dqn"


def test_trains_compares_and_leaves_a_checkpoint_that_other_commands_take(tmp_path, capsys):
    out = tmp_path / "run"
    assert train.main([*TINY, *SMALL_PPO, "total_steps=256", f"out={out}", "tracker=tensorboard"]) == 0
    said = capsys.readouterr()
    assert "static_dp" in said.out
    assert "maskable_ppo" in said.out
    assert f"Learning curve in {out / 'learning_curve.png'}" in said.out
    assert (out / "learning_curve.png").stat().st_size > 10_000
    assert "256 steps" in said.err
    rows = rows_of(out)
    assert [row["steps"] for row in rows if row["kind"] == "train"] == [64, 128, 192, 256]
    assert [row["steps"] for row in rows if row["kind"] == "validation"] == [0, 128, 256]
    assert list((out / "tensorboard").glob("events*"))
    comparison = json.loads((out / "comparison.json").read_text())
    assert set(comparison["policies"]) == {"maskable_ppo", "static_dp"}
    assert comparison["roles"] == {"maskable_ppo": "agent", "static_dp": "static"}
    static = evaluated(
        ["env=dp_tp", BURSTY, "policy=static_dp", "split=validation", "seeds=1"], tmp_path / "v"
    )
    assert comparison["training"]["validation_returns"]["static_dp"] == static["return"]["mean"]
    best = max(row["return"] for row in rows if row["kind"] == "validation")
    assert comparison["training"]["validation_returns"]["maskable_ppo"] == best
    for name in ("config.yaml", "card.md", "spaces.json", "weights.pt"):
        assert (out / "checkpoint" / name).is_file()
    words = [
        "env=dp_tp",
        f"policy={out}/checkpoint",
        BURSTY,
        "workload.num_requests=60",
        "seeds=2",
        f"out={tmp_path}/e",
    ]
    assert evaluate.main(words) == 0
    summary = json.loads((tmp_path / "e" / "summary.json").read_text())
    assert summary["metrics"]["return"]["iqm"] == pytest.approx(
        comparison["policies"]["maskable_ppo"]["metrics"]["return"]["iqm"]
    )


@pytest.mark.parametrize("agent", full_except(["ppo", "dqn"], "dqn"))
def test_other_agents(agent, tmp_path):
    own = (
        SMALL_PPO
        if agent == "ppo"
        else ["agent.warm_up_steps=20", "agent.batch_size=16", "agent.buffer_size=500"]
    )
    assert train.main([*TINY, *own, f"agent={agent}", "total_steps=128", f"out={tmp_path}"]) == 0
    assert (tmp_path / "checkpoint" / "weights.pt").is_file()


@pytest.mark.parametrize("agent", full_except(["maskable_ppo", "api"], "api"))
def test_routing_with_what_the_agent_has_otherwise_there(agent, tmp_path, capsys):
    words = [word for word in TINY if not word.startswith(("env=", "baselines=", "workload="))]
    words += ["env=routing", "baselines=[round_robin]", f"agent={agent}", f"out={tmp_path / 'run'}"]
    words += (
        ["agent.rollout_steps=16", "agent.batch_size=32", "total_steps=128"]
        if agent == "maskable_ppo"
        else ["agent.iterations=2", "agent.epochs=2", "agent.horizon=5", "total_steps=6000"]
    )
    assert train.main(words) == 0
    assert "round_robin" in capsys.readouterr().out
    settings = yaml.safe_load((tmp_path / "run" / "checkpoint" / "config.yaml").read_text())["agent"]
    if agent == "api":
        assert settings["start"]["name"] == "linear_score"
        assert settings["trust"] > 0
    else:
        assert settings["disturbance"] == 0.0
    words = ["env=routing", f"policies=[round_robin,{tmp_path}/run/checkpoint]", "cluster=fleet_h100_x16"]
    words += ["workload.num_requests=60", "seeds=2", "plots=false", f"out={tmp_path / 'c'}"]
    assert compare.main(words) == 0


@pytest.mark.full
def test_the_policies_of_a_portfolio_are_named_on_the_command_line(tmp_path, capsys):
    words = [word for word in TINY if not word.startswith("baselines=")]
    words += ["agent=portfolio", "agent.epochs=2", "agent.horizon=5", "baselines=[]"]
    chosen = "agent.policies=[load_threshold,{name: load_threshold, params: {layouts: [2x4]}}]"
    assert train.main([*words, chosen, "total_steps=1000", f"out={tmp_path / 'run'}"]) == 0
    settings = yaml.safe_load((tmp_path / "run" / "checkpoint" / "config.yaml").read_text())["agent"]
    assert [each["params"]["layouts"] for each in settings["policies"]] == [[], ["2x4"]]
    again = [f"policies=[static_dp,{tmp_path}/run/checkpoint]", BURSTY, "workload.num_requests=60", "seeds=1"]
    assert compare.main(["env=dp_tp", *again, "plots=false", f"out={tmp_path / 'c'}"]) == 0
    capsys.readouterr()
    assert (
        train.main([*words, "agent.policies=[load_treshold,flying_serving]", f"out={tmp_path / 'no'}"]) == 2
    )
    assert "load_threshold" in capsys.readouterr().err


@pytest.mark.full
def test_a_portfolio_by_part_is_validated_on_each_part_in_shares_of_what_it_had_there(tmp_path):
    """A quiet part counts as much as a loud one: before training each loses once what it loses."""
    parts = "[{name: flying_bursty, rate_scale: 0.2}, {name: flying_bursty, rate_scale: 3.0}]"
    words = [word for word in TINY if not word.startswith("baselines=")]
    words += ["workload=mixture", f"workload.params.parts={parts}", "agent=portfolio", "agent.by_part=true"]
    words += ["agent.policies=[load_threshold,{name: load_threshold, params: {layouts: [2x4]}}]"]
    words += ["agent.epochs=2", "agent.horizon=5", "baselines=[]", "total_steps=1000", f"out={tmp_path}"]
    assert train.main(words) == 0
    rows = [row for row in rows_of(tmp_path) if row["kind"] == "validation"]
    assert rows[0]["return"] == pytest.approx(-1.0)
    assert len(rows) > 1
    quiet, loud = json.loads((tmp_path / "last" / "progress.json").read_text())["first_costs"]
    assert 0 < quiet < loud
    assert "| validation episodes | 2 |" in (tmp_path / "checkpoint" / "card.md").read_text()


SMALL = {
    "recurrent_ppo": SMALL_PPO,
    "ppo_lagrangian": SMALL_PPO,
    "residual": [*SMALL_PPO, "agent.baseline=static_dp"],
    "qr_dqn": ["agent.warm_up_steps=20", "agent.batch_size=16", "agent.buffer_size=500"],
    "sac": ["agent.warm_up_steps=20", "agent.batch_size=16", "agent.buffer_size=500"],
    "tqc": ["agent.warm_up_steps=20", "agent.batch_size=16", "agent.buffer_size=500"],
    "ars": ["agent.directions=2", "agent.kept_directions=1", "agent.episodes=2"],
    "cma_es": ["agent.heuristic=load_threshold", "agent.episodes=2"],
    "bc": ["agent.teacher=load_threshold", "agent.epochs=1"],
    "dagger": ["agent.epochs=1"],
    "portfolio": ["agent.policies=[load_threshold,flying_serving]", "agent.epochs=2", "agent.horizon=5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("agent", SMALL)
@pytest.mark.parametrize("env", ["dp_tp", "routing"])
def test_every_agent_on_every_environment_by_config_alone(agent, env, tmp_path):
    words = [word for word in TINY if not word.startswith(("env=", "baselines=", "workload="))]
    own = list(SMALL[agent])
    if env == "routing":
        own = [w.replace("load_threshold", "linear_score").replace("static_dp", "jsq") for w in own]
        own = [w.replace("flying_serving", "jsq") for w in own]
    compared = "static_dp" if env == "dp_tp" else "round_robin"
    bursty = [BURSTY] if env == "dp_tp" else []
    words += [*bursty, f"env={env}", f"agent={agent}", f"baselines=[{compared}]", "total_steps=128"]
    assert train.main([*words, *own, f"out={tmp_path}"]) == 0
    again = [f"env={env}", f"policy={tmp_path}/checkpoint", *bursty, "workload.num_requests=60", "seeds=1"]
    assert evaluate.main([*again, f"out={tmp_path}/e"]) == 0


@pytest.mark.full
def test_a_teacher_goes_by_its_name_and_stands_in_the_checkpoint_with_its_constants(tmp_path):
    words = ["agent=bc", "agent.teacher=load_threshold_tuned", "agent.epochs=1", "total_steps=32"]
    assert train.main([*TINY, *words, f"out={tmp_path}"]) == 0
    settings = yaml.safe_load((tmp_path / "checkpoint" / "config.yaml").read_text())["agent"]
    assert settings["teacher"]["name"] == "load_threshold"
    assert settings["teacher"]["params"]["dwell_s"] > 0
    assert train.main([f"resume={tmp_path}", "total_steps=64"]) == 0


def test_wandb_offline_needs_no_account_and_goes_on_with_the_same_run(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert train.main([*TINY, *SMALL_PPO, "total_steps=64", f"out={tmp_path}", "tracker=wandb"]) == 0
    assert train.main([f"resume={tmp_path}", "total_steps=128"]) == 0
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len({run.name.rpartition("-")[2] for run in runs}) == 1
    files = [file.name for run in runs for file in run.rglob("*.png")]
    assert any(name.startswith("learning_curve") for name in files)
    assert any(name.startswith("intervals") for name in files)


def test_a_policy_that_training_has_not_changed_beats_nobody(tmp_path, capsys):
    words = [*TINY, *SMALL_PPO, "agent.learning_rate=1e-30", "total_steps=256", f"out={tmp_path}"]
    assert train.main(words) == 0
    said = capsys.readouterr()
    assert "Training has not improved on its start (an untrained network, step 0)" in said.err
    assert "beats" not in said.err + said.out
    training = json.loads((tmp_path / "comparison.json").read_text())["training"]
    assert (training["improved"], training["steps"]) == (False, 0)
    state = json.loads((tmp_path / "last" / "progress.json").read_text())
    assert state["start_actions"] == state["best_actions"] != ""


@pytest.mark.full
def test_the_same_seed_gives_the_same_agent(tmp_path):
    logs = []
    for run in ("a", "b"):
        assert train.main([*TINY, *SMALL_PPO, "total_steps=128", "seed=3", f"out={tmp_path / run}"]) == 0
        rows = rows_of(tmp_path / run)
        logs.append([{key: value for key, value in row.items() if key != "minutes"} for row in rows])
    assert logs[0] == logs[1]
    assert (tmp_path / "a/checkpoint/weights.pt").read_bytes() == (
        tmp_path / "b/checkpoint/weights.pt"
    ).read_bytes()


@pytest.mark.full
def test_the_clock_starts_when_the_kernel_is_compiled(tmp_path, monkeypatch):
    """A step of an episode is taken before, which is what has nearly all of the kernel compiled."""
    seen = []

    class Watched(Training):
        def run(self, *args):
            step = self.envs[0].step
            self.envs[0].step = lambda action: (seen.append(time.monotonic()), step(action))[1]
            super().run(*args)
            seen.append(self.budget.started_s)

    monkeypatch.setattr(train, "Training", Watched)
    assert train.main([*TINY, *SMALL_PPO, "total_steps=64", f"out={tmp_path}"]) == 0
    assert seen[0] < seen[-1]


@pytest.mark.full
def test_validations_cost_no_learner_its_last_lesson(tmp_path, monkeypatch):
    """Those of half of the time each leave a cloner no round in which it would learn; who stops it wants no lesson."""

    class Slow(Training):
        def _validate(self, tracker):
            if self.validations and "stopped" in self.out.name:
                raise KeyboardInterrupt
            super()._validate(tracker)
            self.budget.spent_s += 150.0

    monkeypatch.setattr(train, "Training", Slow)
    words = [*TINY, "agent=bc", "agent.teacher=load_threshold", "agent.epochs=1"]
    words += ["total_steps=400", "max_minutes=5"]
    assert train.main([*words, f"out={tmp_path / 'run'}"]) == 0
    rows = rows_of(tmp_path / "run")
    assert [row["kind"] for row in rows] == ["validation", "train", "validation", "train", "validation"]
    assert ["agreement" in row for row in rows] == [False, False, False, True, False]
    assert train.main([*words, f"out={tmp_path / 'stopped'}"]) == 130
    assert [row["kind"] for row in rows_of(tmp_path / "stopped")] == ["validation", "train"]


@pytest.mark.full
def test_what_was_learned_before_a_save_that_took_the_last_minutes_is_tried(tmp_path, monkeypatch):
    class Slow(Training):
        def _save_last(self):
            super()._save_last()
            self.budget.spent_s += 150.0

    monkeypatch.setattr(train, "Training", Slow)
    words = ["validations=1", "save_every_s=1e-6", "total_steps=100000", "max_minutes=5"]
    assert train.main([*TINY, *SMALL_PPO, *words, f"out={tmp_path}"]) == 0
    assert [row["kind"] for row in rows_of(tmp_path)] == ["validation", "train", "validation"]


@pytest.mark.full
def test_a_killed_training_resumes_and_nothing_is_lost(tmp_path, capsys):
    out = tmp_path / "run"
    words = [*TINY, *SMALL_PPO, "seed=5", "total_steps=100000000", "save_every_s=0.05", f"out={out}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.train", *words],
        cwd=CONFIG_DIR.parent,
        env={**os.environ, "PYTHONPATH": str(CONFIG_DIR.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1200):
            if (out / "last").exists() and len(rows_of(out)) >= 5:
                break
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = json.loads((out / "last" / "progress.json").read_text())["steps"]
    total = before + 192
    assert train.main([f"resume={out}", f"total_steps={total}"]) == 0
    assert "static_dp" in capsys.readouterr().out
    steps = [row["steps"] for row in rows_of(out) if row["kind"] == "train"]
    assert steps == list(range(64, total + 1, 64))
    assert "seed: 5" in (out / "last" / "config.yaml").read_text()
    contradiction = failure([f"resume={out}", "seed=6"], capsys)
    assert "seed=5" in contradiction
    assert "seed=6" in contradiction
    assert (
        train.main([f"resume={out}", "env=dp_tp", "agent=maskable_ppo", "seed=5"]) == 0
    )  # nothing left to do


@pytest.mark.full
def test_a_training_goes_on_on_another_workload(tmp_path):
    """The policy kept is the best on the new workload's episodes, whatever the old ones came to."""
    assert train.main([*TINY, *SMALL_PPO, "total_steps=64", f"out={tmp_path}"]) == 0
    words = [f"resume={tmp_path}", "env=dp_tp", "workload=azure_conv_fitted", "workload.num_requests=60"]
    assert train.main([*words, "total_steps=128"]) == 0
    settings = yaml.safe_load((tmp_path / "checkpoint" / "config.yaml").read_text())
    assert settings["workload"]["name"] == "azure_conv_fitted"
    last = [row for row in rows_of(tmp_path) if row["kind"] == "validation"][-1]
    assert last["steps"] == 128
    assert last["best_return"] == last["return"]


def test_a_training_goes_on_in_another_folder(tmp_path, capsys):
    """With all that the first had come to, which stays as it is; not over a third one."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert train.main([*TINY, *SMALL_PPO, "total_steps=64", f"out={first}"]) == 0
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert train.main([f"resume={first}", f"out={second}", "total_steps=128"]) == 0
    assert [row["steps"] for row in rows_of(second) if row["kind"] == "train"] == [64, 128]
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    capsys.readouterr()
    said = failure([f"resume={first}", f"out={second}", "total_steps=192"], capsys)
    assert "holds another training than resume=" in said
    shutil.rmtree(second / "last")  # as `runners.join` leaves a folder
    assert "holds another training" in failure([f"resume={first}", f"out={second}"], capsys)


@pytest.mark.full
def test_words_beside_resume_change_what_they_name_alone(tmp_path, capsys):
    chat = ["workload=azure_conv_fitted", "workload.num_requests=60", "tracker=wandb"]
    saved = [*TINY[:1], *chat, *TINY[3:], *SMALL_PPO, "total_steps=64", f"out={tmp_path}"]
    assert train.main(saved) == 0
    assert train.main([f"resume={tmp_path}", "workload.rate_scale=2", "total_steps=128"]) == 0
    workload = yaml.safe_load((tmp_path / "last" / "config.yaml").read_text())["workload"]
    assert (workload["name"], workload["num_requests"], workload["rate_scale"]) == (
        "azure_conv_fitted",
        60,
        2.0,
    )
    capsys.readouterr()
    said = failure([f"resume={tmp_path}", "experiment=priority"], capsys)
    assert "experiment cannot stand beside resume" in said


@pytest.mark.full
def test_words_beside_resume_agree_with_the_run_in_all_that_they_say(tmp_path, capsys):
    """A fleet, an objective or a policy whose name is looked up has no one key that tells it from others."""
    out, tuned = tmp_path / "run", "agent.baseline=load_threshold_tuned"
    same = [*TINY, *SMALL_PPO, "agent=residual", tuned, "cluster=nemotron_8b_h200", "objective=default"]
    assert train.main([*same, "total_steps=64", f"out={out}"]) == 0
    assert train.main([f"resume={out}", *same, "total_steps=64"]) == 0
    assert train.main([f"resume={out}", "env=dp_tp", "agent=residual", "total_steps=64"]) == 0
    capsys.readouterr()
    for word, key in {
        "objective=autoscaling": "objective.latency=1.0, it cannot go on with objective.latency=0.0;",
        "cluster=llama3_70b_h200_w2": "cluster.model=",
        "cluster={num_gpus: 4}": "cluster.num_gpus=8, it cannot go on with cluster.num_gpus=4;",
        "agent.baseline=load_threshold": "agent.baseline.params.",
        f"agent.baseline={out}": "agent.baseline.name=load_threshold,",
        "env={drain_limit_s: 7.0}": "env.drain_limit_s=300.0,",
    }.items():
        own = [each for each in same if each.partition("=")[0] != word.partition("=")[0] or "{" in word]
        assert f"has {key}" in failure([f"resume={out}", *own, word], capsys)


def test_words_name_what_differs_wherever_it_stands():
    two = [{"name": "checkpoint", "path": "runs/a"}, {"name": "checkpoint", "path": "runs/b"}]
    assert not list(_differences("agent.start", {"name": "jsq", "new": None}, {"name": "jsq"}))
    assert list(_differences("agent.policies", two, [two[0], two[0]])) == [
        ("agent.policies[1].path", "runs/b", "runs/a")
    ]
    assert list(_differences("agent.policies", two, two[:1])) == [("agent.policies", two, two[:1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["agent.start={path: runs/x}"], "agent.start must be a policy's name"),
        (["agent.stays=0.5"], "agent.stays is for env=routing alone, got 0.5 in env=dp_tp; leave it null"),
        (["cluster=tiny_llama_cpu", "total_steps=64"], "agent=api has nothing to learn"),
    ],
)
def test_what_a_learner_cannot_do_it_says_in_a_sentence(words, expected, tmp_path, capsys):
    assert train.main([*TINY, "agent=api", *words, f"out={tmp_path}"]) == USER_ERROR
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert expected in last


@pytest.mark.full
def test_baselines_that_look_ahead_or_were_learned_are_no_heuristics(tmp_path):
    words = [*TINY[:-1], *SMALL_PPO, "total_steps=64", "baselines=[static_dp,zoo/dp_tp]", f"out={tmp_path}"]
    assert train.main(words) == 0
    said = json.loads((tmp_path / "comparison.json").read_text())
    assert said["best_heuristic"] == "static_dp"
    assert said["learned"] == ["maskable_ppo", "zoo/dp_tp"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["agent=maskable_pp"], "maskable_ppo"),
        (["agent.epoch=3"], "epochs"),
        (["agent.epochs=0"], "epochs"),
        (["agent=sac", "agent.target_rat=0.1"], "target_rate"),
        (["agent=bc", "agent.teacher=flying_servin"], "flying_serving"),
        (["agent=residual", "agent.baseline=null"], "agent.baseline must name a policy"),
        (["agent=cma_es", "agent.heuristic=static_dp"], "declares no constants"),
        (["agent=ppo", "agent.network.hidden_widths=[]"], "network.hidden_widths must be at least one width"),
        (["agent=api", "agent.entropy_weights=[0.3]"], "agent.entropy_weights must be two positive numbers"),
        (["num_envs=0"], "num_envs"),
        (["total_steps=0"], "total_steps"),
        (["max_minutes=-1"], "max_minutes"),
        (["baselines=[static_db]"], "static_dp"),
        (["resume=/nowhere"], "nothing to resume"),
        (["env=dp_pt"], "dp_tp"),
        (["workload.num_requests=0"], "num_requests"),
        (["cluster.model=llama-3-70b"], "does not fit"),
    ],
)
def test_mistakes_get_one_sentence(words, expected, tmp_path, capsys):
    out = [] if words[0].startswith("resume") else [f"out={tmp_path}"]
    assert expected in failure([*TINY, *words, *out], capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["agent=api", "also_clusters=[fleet_h100_x4]"],
            "also_clusters is for agent=api in env=routing and for agent=bc and dagger alone",
        ),
        (
            ["agent=api", "also_env=[{decision_interval_s: 2.0}]"],
            "also_env is for agent=api in env=routing and for",
        ),
        (
            ["env=routing", "agent=api", "also_env=[{gauge_intervals_s: 1.0}]"],
            "did you mean 'also_env.gauge_interval_s'",
        ),
        (["env=routing", "agent=api", "also_env=[{gauge_interval_s: 90.0}]"], "must lie in [0, 60], got 90"),
        (
            ["env=routing", "agent=api", "also_workloads=[azure_conv]"],
            "also_workloads is for agent=bc, dagger and reuse alone",
        ),
        (["env=sharing", "agent=dagger", "also_workloads=[functions_2091]"], "did you mean 'functions_2019'"),
        (
            ["env=sharing", "agent=dagger", "also_workloads=[file]"],
            "workload 'file' leaves workload.path to be given",
        ),
        (["env=routing", "agent=api", "also_clusters=[fleet_h100_x5]"], "did you mean 'fleet_h100_x4'"),
        (
            ["agent=api", "also_fleets=any"],
            "also_fleets is for agent=api in env=routing alone; leave it none",
        ),
        (
            ["env=routing", "agent.teacher=jsq", "agent=bc", "also_fleets=any"],
            "also_fleets is for agent=api in env=routing alone",
        ),
        (
            ["env=routing", "agent=api", "also_fleets=any", "also_fleets.places=[0,4]"],
            "also_fleets.places must be two numbers, least and most, got [0, 4]",
        ),
    ],
)
def test_other_clusters_to_train_on_are_fleets_of_a_router(words, said, capsys):
    assert said in failure(words, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["env=routing", "agent.teacher=jsq", "also_clusters=[fleet_h100_x16]"],
            "also_clusters=fleet_h100_x16 must",
        ),
        (
            ["env=routing", "agent.teacher=jsq", "also_env=[{max_places: 6}]"],
            "also_env={'max_places': 6} must show",
        ),
        (
            ["agent.teacher=load_threshold", "also_workloads=[flying_bursty,flying_priority]"],
            "also_workloads=flying_priority must show and take as much as the environment itself: observation[",
        ),
    ],
)
def test_the_word_that_asks_for_a_place_that_shows_something_else_is_named(words, said, tmp_path, capsys):
    own = [*TINY[:-1], "baselines=[]", "agent=bc", "total_steps=8", f"out={tmp_path}"]
    assert train.main([*own, *words]) == USER_ERROR
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
