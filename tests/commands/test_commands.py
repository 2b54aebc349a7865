"""Every command runs on a tiny episode, and says one clear sentence when it cannot."""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir

from serving_gym.runners import bench, compare, evaluate, simulate, tune
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.policies import CONFIG_DIR, load_policy, policy_config, policy_names
from serving_gym.runners.configuration.schema import register_schemas
from tests.tiers import full_except

Main = Callable[[Sequence[str]], int]
BURSTY = "workload=flying_bursty"
TINY = ["workload.num_requests=40", "seeds=2"]


def failure(main: Main, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that must fail says."""
    assert main(words) == USER_ERROR
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert len([line for line in said.splitlines() if "it/s" not in line and "|" not in line]) == 1, said
    return said


@pytest.mark.parametrize(
    "name", full_except(["evaluate", "compare", "tune", "simulate", "bench", "validate"], "tune")
)
def test_every_command_and_choice_composes(name: str) -> None:
    """A choice of each group at a time, as the groups say nothing of each other; a cluster with its environment."""
    register_schemas()
    choices: dict[str, list[list[str]]] = {}
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        config = compose(name)
        for group in set(config) & {path.name for path in CONFIG_DIR.iterdir() if path.is_dir()}:
            for file in (CONFIG_DIR / group).glob("*.yaml"):
                kind = file.stem.partition("_")[0] if group == "cluster" else ""
                env = {"fleet": "routing", "machines": "deployment", "nodes": "sharing"}.get(kind)
                together = choices.setdefault("env" if group == "cluster" else group, [])
                if env and "env" in config:
                    together.append([f"env={env}", f"{group}={file.stem}"])
                elif (group != "policy" or name != "tune") and (not env or name == "simulate"):
                    together.append([f"{group}={file.stem}"])
        for words in zip_longest(*choices.values(), fillvalue=[]):
            compose(name, overrides=[word for choice in words for word in choice])
        if "env" in config:
            for file in (CONFIG_DIR / "experiment").glob("*.yaml"):
                compose(name, overrides=[f"experiment={file.stem}"])


def test_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["env=dp_tp", BURSTY, "policy=static_4x2", f"out={tmp_path}", *TINY]
    assert evaluate.main(words) == 0
    assert "static_4x2 on flying_bursty, 2 episodes" in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["policy"] == "static_4x2"
    assert summary["metrics"]["arrived"]["iqm"] == 40
    assert len(pd.read_parquet(tmp_path / "episodes.parquet")) == 2
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) == 80
    report = json.loads((tmp_path / "requests.json").read_text())
    assert len(report["ttfts"]) == report["completed"] + report["failed"] == 40
    first = json.loads((tmp_path / "decisions.jsonl").read_text().splitlines()[0])
    assert first["action"]["command"] == "Redeploy"
    assert (tmp_path / ".hydra" / "config.yaml").exists()


def test_compare_is_paired_and_repeats(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        words = ["policies=[static_dp,static_tp]", f"out={tmp_path / folder}", "plots=false", BURSTY, *TINY]
        assert compare.main(words) == 0
    first, second = (json.loads((tmp_path / folder / "comparison.json").read_text()) for folder in ("a", "b"))
    for comparison in (first, second):
        for entry in comparison["policies"].values():
            entry.pop("us_per_decision")
    assert first == second
    assert first["blocks"] == first["seeds"] == 2
    assert set(first["policies"]) == {"static_dp", "static_tp"}
    episodes = pd.read_parquet(tmp_path / "a" / "episodes.parquet")
    assert episodes.groupby("policy")["seed"].apply(list).tolist() == [[0, 1], [0, 1]]


def test_tune_never_ends_below_where_it_began(tmp_path: Path) -> None:
    words = [
        "policy=load_threshold",
        "evaluations=3",
        BURSTY,
        "workload.num_requests=40",
        "seeds=1",
        f"out={tmp_path}",
    ]
    assert tune.main(words) == 0
    report = json.loads((tmp_path / "tuning.json").read_text())
    assert report["tuned"]["return"] >= report["before"]["return"]
    text = (tmp_path / "tuned.yaml").read_text()
    assert "# python -m runners.tune policy=load_threshold evaluations=3" in text
    assert load_policy(yaml.safe_load(text)).name == "load_threshold"
    assert len(pd.read_parquet(tmp_path / "candidates.parquet")) == 4


@pytest.mark.full
def test_tuning_by_shares_of_a_reference(tmp_path: Path) -> None:
    """Shares of itself are one; beside the batched policies of routing, whose reference decides alone."""
    for policy in ("rate_threshold", "linear_score"):
        env = ["env=routing"] if policy == "linear_score" else [BURSTY]
        words = [*env, f"policy={policy}", f"reference={policy}", "evaluations=2"]
        assert tune.main([*words, "workload.num_requests=40", "seeds=2", f"out={tmp_path / policy}"]) == 0
        report = json.loads((tmp_path / policy / "tuning.json").read_text())
        assert report["before"]["return"] == pytest.approx(-1.0)
        assert report["tuned"]["return"] >= report["before"]["return"]
        text = (tmp_path / policy / "tuned.yaml").read_text()
        assert f"mean share of {policy}'s return -1 before" in text


@pytest.mark.full
def test_no_episode_counts_for_more_than_the_clip(tmp_path: Path) -> None:
    """In short episodes static_tp is far better than these thresholds."""
    words = [
        "policy=load_threshold",
        BURSTY,
        "cluster=gpt_oss_120b_h200",
        "workload.num_requests=200",
        "seeds=3",
        "evaluations=2",
        f"out={tmp_path}",
    ]
    assert tune.main([*words, "reference=static_tp", "clip=0.001"]) == 0
    returns = pd.read_parquet(tmp_path / "candidates.parquet")["return"]
    assert returns.iloc[0] == pytest.approx(-1.001)
    assert ((returns > -1.001 - 1e-9) & (returns < -0.999 + 1e-9)).all()
    assert "static_tp's return (within 0.001 of it)" in (tmp_path / "tuned.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [(["clip=0.1"], "clip needs reference"), (["reference=static_tp", "clip=0"], "clip must be positive")],
)
def test_only_shares_are_clipped(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["policy=load_threshold", *words]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_simulate(tmp_path: Path) -> None:
    words = [
        "workload=azure_conv_fitted",
        "workload.num_requests=50",
        "router=round_robin",
        f"out={tmp_path}",
    ]
    assert simulate.main(words) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["router"] == "round_robin"
    assert summary["metrics"]["completed"] == 50
    assert set(pd.read_parquet(tmp_path / "requests.parquet")["engine"]) == set(range(8))
    assert len(json.loads((tmp_path / "requests.json").read_text())["itls"]) == 50
    alone = tmp_path / "alone"
    assert simulate.main([*words[:-1], "requests_json=false", f"out={alone}"]) == 0
    assert (alone / "requests.parquet").is_file()
    assert not (alone / "requests.json").exists()


def test_simulate_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workload=azure_conv_fitted", "workload.num_requests=300", "cluster=fleet_two_gpus"]
    assert simulate.main([*words, "router=round_robin", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["router"] == "round_robin"
    metrics = summary["metrics"]
    assert metrics["completed"] == 300
    assert (
        0 <= metrics["gpu_hours"] - 8 * summary["duration_s"] / 3600 < 8 / 3600
    )  # rent goes on to a full second
    assert metrics["cost_usd"] == pytest.approx((6.88 + 3.43) / 2 * metrics["gpu_hours"])
    assert set(pd.read_parquet(tmp_path / "requests.parquet")["engine"]) == set(range(8))
    assert "energy_kwh" in capsys.readouterr().out


@pytest.mark.full
def test_a_fleet_has_the_faults_that_its_file_names(tmp_path: Path) -> None:
    words = ["workload=azure_conv_fitted", "workload.num_requests=300", "cluster=fleet_faulty"]
    words += ["workload.rate_rps=20", "cluster.crashes.0.time_s=5", f"out={tmp_path}"]
    assert simulate.main(words) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"]["failed"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cluster=fleet_two_gpu"], "did you mean 'fleet_two_gpus'"),
        (["cluster=fleet_two_gpus", "cluster.routr=jsq"], "did you mean 'router'"),
        (["cluster=fleet_two_gpus", "router=jqs"], "fleet.router must be one of"),
        (["cluster=fleet_two_gpus", "router=affinity"], "fleet.router must be one of"),
        (["cluster=fleet_two_gpus", "router=hold"], "router=hold waits for a policy"),
        (["cluster=llama31_8b_h100_x8", "router=hold"], "router=hold waits for a policy"),
        (
            [
                "cluster=fleet_two_gpus",
                "cluster.groups=[{replica:{model:llama-3.1-8b,gpu:H100},count:0,places:2}]",
            ],
            "lacks replicas at the start",
        ),
        (["cluster=fleet_two_gpus", "cluster.groups.0.replica.gpu=H10"], "did you mean 'H100'"),
        (["cluster=fleet_two_gpus", "cluster.groups.0.count=many"], "could not be converted to Integer"),
        (["cluster=fleet_faulty", "cluster.crashes.0.place=9"], "place must be 0 to 3, got 9"),
        (["cluster=llama31_8b_h100_x8", "cluster.num_gpu=3"], "did you mean 'num_gpus'"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in failure(simulate.main, [*words, "workload.num_requests=10", f"out={tmp_path}"], capsys)


def test_a_fleet_is_refused_where_a_node_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env=dp_tp", "policy=static_dp", "cluster=fleet_two_gpus", f"out={tmp_path}"]
    assert "dp_tp needs a node" in failure(evaluate.main, words, capsys)


@pytest.mark.full
def test_bench(tmp_path: Path) -> None:
    measured = ("simulate.requests_per_s", "stream.requests_per_s", "week.seconds", "oracle.requests_per_s", "fork.us",
                "env.steps_per_s")  # fmt: skip
    words = [
        f"only=[{','.join(measured)}]",
        "engines=[8]",
        "repeats=1",
        "num_envs=2",
        "oracle_requests=20",
        "requests=[100]",
        "week_requests=1000",
        "workload=flying_bursty",
        f"out={tmp_path}",
    ]
    assert bench.main(words) == 0
    report = json.loads((tmp_path / "bench.json").read_text())
    assert {result["name"] for result in report["results"]} == set(measured)
    assert all(result["value"] > 0 and result["peak_rss_mib"] > 0 for result in report["results"])
    params = report["results"][0]["params"]
    assert params["engines"] == 8
    assert (params["workload"], params["router"], params["prefix_caching"]) == ("flying_bursty", "jsq", False)


def test_tensorboard(tmp_path: Path) -> None:
    words = ["tracker=tensorboard", "seeds=1", BURSTY, "workload.num_requests=20", f"out={tmp_path}"]
    assert evaluate.main(words) == 0
    assert list((tmp_path / "tensorboard").glob("events*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=dp_pt"], "unknown env 'dp_pt'; did you mean 'dp_tp'?"),
        (["workload=azure_cnv"], "unknown workload 'azure_cnv'; did you mean 'azure_conv'?"),
        (["backend=vlm"], "unknown backend 'vlm'"),
        (["policy=flying_servin"], "unknown policy 'flying_servin'; did you mean 'flying_serving'"),
        (["policy=static_3x2"], "unknown policy 'static_3x2'"),
        (["policy=zoo/nobody"], "unknown policy 'zoo/nobody'"),
        (["env.decision_intervl_s=2"], "unknown key 'env.decision_intervl_s'; did you mean 'decision_interval_s'?"),
        (["cluster.num_gpu=4"], "unknown key 'cluster.num_gpu'; did you mean 'num_gpus'?"),
        (["+cluster.num_gpu=4"], "unknown key 'cluster.num_gpu'; did you mean 'cluster.num_gpus'?"),
        (["polices=[a]"], "unknown key 'polices'; did you mean 'policy'?"),
        (["policy.params.dwell=1", "policy=load_threshold"], "'policy.params.dwell'; did you mean 'dwell_s'?"),
        (["seeds=many"], "seeds: Value 'many' of type 'str' could not be converted to Integer"),
        (["seeds=0"], "seeds must be at least 1, got 0"),
        (["seeds"], "cannot read the word 'seeds': words are key=value"),
        (["split=tset"], "unknown split 'tset'; did you mean 'test'?"),
        (["env.decision_interval_s=0"], "decision_interval_s must be positive, got 0"),
        (["cluster.model=gpt-oss-12b"], "gpt-oss-120b"),
        (["cluster.num_gpus=6"], "power of two"),
        (["workload=file"], "path must be given"),
        (["workload=file", "workload.path=absent.csv"], "absent.csv"),
        (["tracker=wandb", "tracker.mode=on"], "unknown tracker.mode 'on'; did you mean 'online'?"),
    ],
)  # fmt: skip
def test_one_clear_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in failure(evaluate.main, [*words, f"out={tmp_path}"], capsys)


def test_bad_policies_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"out={tmp_path}"
    said = failure(compare.main, ["policies=[static_dp,static_pt]", out], capsys)
    assert "unknown policy 'static_pt'; did you mean 'static_tp'" in said
    assert "must be a list, written policies=[a,b]" in failure(
        compare.main, ["policies=static_dp", out], capsys
    )
    assert "policies names 'static_dp' more than once" in failure(
        compare.main, ["policies=[static_dp,static_dp]", out], capsys
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arrival_s,input_tokens,output_tokens\n", "empty"),
        ("arrival_s,input_tokens\n0,1\n", "output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n0,5,5\n-1,5,5\n", "row 1, column 'arrival_s'"),
        ("arrival_s,input_tokens,output_tokens\n0,5,5\n1,0,5\n", "row 1, column 'input_tokens'"),
    ],
)
def test_bad_traces(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    words = ["workload=file", f"workload.path={path}", f"out={tmp_path / 'out'}"]
    assert said in failure(simulate.main, words, capsys)


def test_an_unwritable_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    said = failure(simulate.main, [f"out={tmp_path / 'file' / 'below'}"], capsys)
    assert f"cannot use '{tmp_path / 'file' / 'below'}'" in said


def test_debugging_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_GYM_DEBUG", "1")
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        evaluate.main(["seeds=0", f"out={tmp_path}"])


def test_words_of_the_caller_stay_as_they_were(tmp_path: Path) -> None:
    before = list(sys.argv)
    evaluate.main(["seeds=0", f"out={tmp_path}"])
    assert sys.argv == before


@pytest.mark.parametrize("name", [name for name in policy_names() if not name.startswith("zoo/")])
def test_every_policy_file_makes_a_policy(name: str) -> None:
    config = policy_config(name)
    assert load_policy(config).name
    assert load_policy(name).name == load_policy(config).name


def test_the_deployment_environment(tmp_path: Path) -> None:
    words = ["env=deployment", "cluster=machines_h100_x8", *TINY, "workload.num_requests=200", "plots=false"]
    words += ["env.past_requests=500", "env.past_spans=20", "workload.params.mean_rps=10"]
    policies = "policies=[vllm_static,vllm_reload_ad_hoc,clairvoyant_deployment]"
    assert compare.main([*words, policies, f"out={tmp_path / 'compare'}"]) == 0
    comparison = json.loads((tmp_path / "compare" / "comparison.json").read_text())
    assert comparison["policies"]["vllm_static"]["metrics"]["completed"]["iqm"] == 200
    assert set(comparison["regret"]["clairvoyant"]) == {"vllm_static", "vllm_reload_ad_hoc"}
    words = [word for word in words if word != "plots=false"]
    assert evaluate.main([*words, "policy=stay", f"out={tmp_path / 'evaluate'}"]) == 0


def test_the_autoscaling_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "env=autoscaling",
        "workload.params.mean_rps=1",
        "env.episode_s=1200",
        "env.history_s=3600",
        "seeds=2",
    ]
    words += ["env.decision_interval_s=300"]
    assert evaluate.main([*words, "policy=random", f"out={tmp_path}"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 4
    said = [change for line in lines for change in line["action"]]
    assert {change["operation"] for change in said} <= {"START", "STOP"}
    assert said[0]["command"] == "ScaleChange"
    summary = json.loads((tmp_path / "summary.json").read_text())
    metrics = summary["metrics"]
    assert metrics["cost_usd"]["mean"] == -metrics["reward/gpu_usd"]["mean"] > 0
    printed = capsys.readouterr().out
    assert "gpu_hours" in printed
    assert "cost_usd" in printed
    policies = ["policies=[fixed_instances,hpa_waiting]", "plots=false", f"out={tmp_path / 'compare'}"]
    assert compare.main([*words, *policies]) == 0
    headings = "".join(capsys.readouterr().out.splitlines()[1:6])
    assert "hours" in headings
    assert "usd" in headings


@pytest.mark.full
def test_presets_of_autoscaling_compose(tmp_path: Path) -> None:
    words = [
        "experiment=autoscaling_regions",
        "workload.params.mean_rps=1",
        "env.episode_s=600",
        "env.history_s=3600",
    ]
    assert evaluate.main([*words, "policy=random", "seeds=1", f"out={tmp_path}"]) == 0


def test_machines_are_not_simulated_without_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(simulate.main, ["cluster=machines_h100_x8", f"out={tmp_path}"], capsys)
    assert "choose a node or a fleet" in said
