"""The benchmark: every task and perturbation composes, one small one runs, and what contradicts it is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml
from hydra import initialize_config_dir

from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.traces import TRACES, find_trace
from serving_gym.runners import compare
from serving_gym.runners.benchmark import benchmark, blocks
from serving_gym.runners.benchmark.benchmark import _composed, known_tasks, load_task, task_names
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.comparison.results import disjoint_seeds
from serving_gym.runners.configuration.policies import CONFIG_DIR, load_policy
from serving_gym.runners.configuration.schema import CompareConfig, register_command, register_schemas
from tests.processes import children_of, is_running
from tests.tiers import full_except


@pytest.fixture
def composing():
    register_schemas()
    register_command("compare", CompareConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        yield


@pytest.mark.parametrize("name", full_except(known_tasks(), "sharing", "transfer/two_unlike"))
def test_every_task_composes(name, composing):
    task = load_task(name)
    for policy in task.policies:
        load_policy(policy)
    for words in (*task.strata.values(), *task.shifts.values()):
        config = _composed((*task.words, *words, *task.short))
        assert name.startswith((config.env["name"], "transfer/"))
        if config.workload.name not in TRACES or find_trace(config.workload.name) is not None:
            config.environment.make()


def test_tasks_in_folders_run_only_where_a_benchmark_names_them(composing):
    transfer = yaml.safe_load((CONFIG_DIR / "benchmark" / "transfer.yaml").read_text())["tasks"]
    assert set(transfer) == set(known_tasks()) - set(task_names())


def test_blocks_of_a_trace_have_no_request_in_common(tmp_path):
    rows = "\n".join(f"{t},{10 + t},{10 + t % 11}" for t in range(1000))
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    source = WorkloadSource(WorkloadSpec("file", path=str(path), num_requests=30))
    seeds = disjoint_seeds(source, "test", 4, first=50)
    mixed = WorkloadSource(replace(source.spec, priority_share=0.3, long_share=0.1))
    assert (
        disjoint_seeds(mixed, "test", 4, first=50) == seeds
    )  # some requests are others; arrivals are the trace's
    assert len(seeds) == 4
    assert min(seeds) >= 50
    whole = WorkloadSource(WorkloadSpec("file", path=str(path))).sample(0, "test")
    places = []
    for seed in seeds:
        window = source.sample(seed, "test")
        found = [
            b
            for b in range(len(whole) - 29)
            if (whole.input_tokens[b : b + 30] == window.input_tokens).all()
            and (whole.output_tokens[b : b + 30] == window.output_tokens).all()
        ]
        places.append(found[0])
    places.sort()
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(places))
    assert len(disjoint_seeds(source, "test", 100, first=0)) <= len(whole) // 30
    drawn = WorkloadSource(WorkloadSpec("flying_bursty", num_requests=30))
    assert disjoint_seeds(drawn, "test", 3, first=7) == [7, 8, 9]


@pytest.fixture
def tiny_task(tmp_path, monkeypatch):
    task = {
        "words": ["env=dp_tp", "workload.num_requests=60"],
        "policies": ["static_dp", "static_tp", "zoo/dp_tp"],
        "strata": {"bursty": ["workload=flying_bursty"], "chat": ["workload=azure_conv_fitted"]},
        "search": {"base": None, "horizon": 4, "candidates": 4},
        "shifts": {"half": ["workload=flying_bursty", "workload.rate_scale=0.5"]},
    }
    file = tmp_path / "own" / "own_tasks" / "tiny.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(task))
    monkeypatch.setattr(benchmark, "TASKS", "own_tasks")
    monkeypatch.setenv("SERVING_GYM_CONFIG_PATH", str(tmp_path / "own"))
    return file


def test_a_benchmark_runs_and_says_what_each_task_is(tmp_path, tiny_task, capsys):
    words = ["benchmark=smoke", "benchmark.blocks=3", "benchmark.search_blocks=2", "benchmark.processes=1"]
    assert compare.main([*words, f"out={tmp_path}/run"]) == 0
    assert "tiny" in capsys.readouterr().out
    said = json.loads((tmp_path / "run" / "tiny" / "comparison.json").read_text())
    assert said["seeds"] == said["blocks"] == 3
    assert said["strata"] == {"bursty": 2, "chat": 1}
    assert said["search_blocks"] == 2
    assert said["workload"] == "flying_bursty, azure_conv_fitted"
    assert set(said["regret"]["bound"]) == set(said["policies"]) == set(said["regret"]["clairvoyant"])
    assert all(share > 0 for share in said["regret"]["bound"].values())
    (row,) = json.loads((tmp_path / "run" / "benchmark.json").read_text())["results"]
    assert row["policy"] == "zoo/dp_tp"
    assert row["badge"] == said["badge"] in ("solved", "open", "none")
    words = ["benchmark=shift", "benchmark.blocks=1", "benchmark.processes=1", f"out={tmp_path}/shift"]
    assert compare.main(words) == 0
    (row,) = json.loads((tmp_path / "shift" / "benchmark.json").read_text())["results"]
    assert row["task"] == "tiny/half"
    assert row["mean_ci95"][0] <= row["mean"] <= row["mean_ci95"][1]
    assert sum(row["strata"].values()) == row["blocks"]
    assert isinstance(row["lost_to"], list)


@pytest.mark.full
def test_a_workload_whose_trace_is_missing_is_named(tmp_path, tiny_task, monkeypatch, capsys):
    task = tiny_task
    said = yaml.safe_load(task.read_text())
    said["strata"]["real"] = ["workload=azure_conv"]
    said["strata"]["with_real"] = [
        "workload=mixture",
        "+workload.params={parts:[{name:azure_conv},{name:flying_bursty}]}",
    ]
    task.write_text(yaml.safe_dump(said))
    monkeypatch.setattr(benchmark, "find_trace", lambda name: None)
    words = ["benchmark=smoke", "benchmark.blocks=2", "benchmark.search_blocks=0", "benchmark.processes=1"]
    assert compare.main([*words, f"out={tmp_path}/run"]) == 0
    shown = capsys.readouterr().out
    assert "without real" in shown
    assert "without with_real" in shown
    (row,) = json.loads((tmp_path / "run" / "benchmark.json").read_text())["results"]
    assert row["skipped"] == ["real", "with_real"]
    assert row["strata"] == {"bursty": 1, "chat": 1}


@pytest.mark.full
def test_windows_of_a_trace_that_overlap_are_counted(tmp_path, capsys):
    rows = "\n".join(f"{t},10,10" for t in range(200))
    (tmp_path / "trace.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}\n")
    words = ["env=dp_tp", "workload=file", f"workload.path={tmp_path}/trace.csv", "workload.num_requests=20"]
    words += ["policies=[static_dp,static_tp]", "plots=false"]
    assert compare.main([*words, "seeds=4", f"out={tmp_path}/four"]) == 0
    blocks = json.loads((tmp_path / "four" / "comparison.json").read_text())["blocks"]
    assert blocks < 4
    assert f"only {blocks} of them can be disjoint in this trace" in capsys.readouterr().out
    assert compare.main([*words, "seeds=1", f"out={tmp_path}/one"]) == 0
    assert "can be disjoint" not in capsys.readouterr().out


def test_another_benchmark_does_not_take_the_place_of_what_is_there(tmp_path, tiny_task, capsys):
    (tmp_path / "benchmark.json").write_text(json.dumps({"benchmark": "full", "results": []}))
    assert compare.main(["benchmark=smoke", f"out={tmp_path}"]) == USER_ERROR
    assert "has results of benchmark=full; choose another folder for smoke" in capsys.readouterr().err
    assert compare.main(["benchmark=smoke", "benchmark.tasks=[]", f"out={tmp_path}/b"]) == USER_ERROR
    assert "benchmark.tasks must name at least one task" in capsys.readouterr().err


def test_what_stands_behind_a_name_is_all_that_it_is_made_of(tmp_path):
    """A run's checkpoint, and one that its agent names."""

    def checkpoint(folder, weights, agent):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump({"format": 1, "env": {}, "agent": agent}))
        (folder / "weights.pt").write_text(weights)

    def content():
        return blocks._content(str(tmp_path / "run"))

    inner = {"name": "checkpoint", "path": str(tmp_path / "start")}
    checkpoint(
        tmp_path / "run" / "checkpoint", "1", {"name": "portfolio", "policies": [{"name": "jsq"}, inner]}
    )
    checkpoint(tmp_path / "start", "2", {"name": "api", "start": {"name": "jsq"}})
    first = content()
    assert content() == first
    (tmp_path / "start" / "weights.pt").write_text("3")
    second = content()
    (tmp_path / "run" / "checkpoint" / "weights.pt").write_text("4")
    third = content()
    assert len({first, second, third}) == 3
    (tmp_path / "run" / "checkpoint" / "card.md").write_text("what people say of it")
    assert content() == third


def test_what_no_episode_depends_on_makes_nothing_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_ROOT", tmp_path)
    monkeypatch.setattr(blocks, "ZOO_DIR", tmp_path / "agents" / "zoo")
    source, checkpoint = (
        tmp_path / "agents" / "network.py",
        tmp_path / "agents" / "zoo" / "one" / "config.yaml",
    )
    checkpoint.parent.mkdir(parents=True)
    source.write_text("")
    without = blocks._code.__wrapped__()
    checkpoint.write_text("format: 1")
    assert blocks._code.__wrapped__() == without
    (tmp_path / "runners" / "comparison").mkdir(parents=True)
    (tmp_path / "runners" / "comparison" / "gates.py").write_text(
        "LIMIT = 1.05"
    )  # said of blocks that have been run
    assert blocks._code.__wrapped__() == without
    source.write_text("HIDDEN = 80")
    assert blocks._code.__wrapped__() != without
    assert all((CONFIG_DIR.parent / name).is_file() for name in blocks._AFTERWARDS)


@pytest.mark.full
def test_what_changes_while_it_runs_is_not_written_down_as_what_was(tmp_path, tiny_task, monkeypatch, capsys):
    shutil.copytree(blocks.ZOO_DIR / "dp_tp", tmp_path / "mine")
    task = tiny_task
    task.write_text(task.read_text().replace("zoo/dp_tp", str(tmp_path / "mine")))
    usual = blocks.run_block

    def retrained_meanwhile(*arguments):
        (tmp_path / "mine" / "config.yaml").open("a").write("\n")
        return usual(*arguments)

    words = ["benchmark=smoke", "benchmark.blocks=2", "benchmark.search_blocks=0", "benchmark.processes=1"]
    words += [f"out={tmp_path}/run"]
    monkeypatch.setattr(blocks, "run_block", retrained_meanwhile)
    assert compare.main(words) == USER_ERROR
    assert "code, traces or policies changed while the benchmark ran" in capsys.readouterr().err
    assert not list((tmp_path / "run").rglob("*.parquet"))
    monkeypatch.setattr(blocks, "run_block", usual)
    assert compare.main(words) == 0


@pytest.mark.full
def test_another_trace_of_the_same_name_is_run_again(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    part = {"name": "file", "path": str(path)}
    workloads = [
        WorkloadSpec(**part),
        WorkloadSpec("mixture", params={"parts": [part, {"name": "azure_conv_fitted"}]}),
    ]
    first = [blocks._traces(workload) for workload in workloads]
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,11\n")
    for workload, before in zip(workloads, first, strict=True):
        assert len(before) == 1
        assert blocks._traces(workload) != before
    assert not blocks._traces(WorkloadSpec("azure_conv_fitted"))


@pytest.mark.full
def test_processes_change_no_figure_and_a_stopped_run_goes_on(tmp_path, tiny_task, capsys):
    words = ["benchmark=smoke", "benchmark.blocks=3"]
    said = {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        assert compare.main([*words, f"benchmark.processes={processes}", f"out={out}"]) == 0
        said[processes] = json.loads((out / "tiny" / "comparison.json").read_text())
        for policy in said[processes]["policies"].values():
            assert policy.pop("us_per_decision") > 0
    assert said[1] == said[2]

    parts = sorted((out / "tiny" / "blocks").iterdir())
    assert len(parts) == 4
    parts[0].unlink()  # as if it had been stopped there
    written = {part: part.stat().st_mtime_ns for part in parts[1:]}
    assert compare.main([*words, "benchmark.processes=1", f"out={out}"]) == 0
    assert parts[0].is_file()
    assert {part: part.stat().st_mtime_ns for part in parts[1:]} == written
    written = {part: part.stat().st_mtime_ns for part in parts}
    others = [
        "benchmark=smoke",
        "benchmark.short=false",
        "benchmark.blocks=2",
        "benchmark.search_blocks=0",
        "benchmark.processes=1",
    ]
    others += ["benchmark.first_seed=1000000", f"out={out}"]
    task = tiny_task
    task.write_text(task.read_text().replace("num_requests=60", "num_requests=50"))
    assert compare.main(others) == 0  # other episodes: what is there does not count
    assert sum(part.stat().st_mtime_ns != written[part] for part in parts) == 2


@pytest.mark.full
def test_no_process_outlives_a_run_that_is_killed(tmp_path):
    words = ["benchmark=smoke", "benchmark.tasks=[dp_tp]", "benchmark.processes=2", f"out={tmp_path}"]
    with (tmp_path / "said").open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "runners.compare", *words],
            stdout=said,
            stderr=said,
            cwd=CONFIG_DIR.parent,
        )
    while not list(tmp_path.glob("dp_tp/blocks/*.parquet")):  # the processes are at work
        assert run.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.05)
    started = children_of(run.pid)
    assert len(started) >= 2
    run.kill()
    run.wait()
    deadline = time.monotonic() + 60.0
    while any(map(is_running, started)):
        assert time.monotonic() < deadline, "some are left behind"
        time.sleep(0.1)


@pytest.mark.full
def test_a_task_without_a_learned_policy_shows_what_its_best_heuristic_lacks(tmp_path, tiny_task):
    task = tiny_task
    task.write_text(task.read_text().replace("- zoo/dp_tp\n", ""))
    words = ["benchmark=smoke", "benchmark.blocks=2", "benchmark.search_blocks=2", "benchmark.processes=1"]
    assert compare.main([*words, f"out={tmp_path}/run"]) == 0
    said = json.loads((tmp_path / "run" / "tiny" / "comparison.json").read_text())
    (row,) = json.loads((tmp_path / "run" / "benchmark.json").read_text())["results"]
    assert "policy" not in row
    assert row["regret_bound"] == said["regret"]["bound"][row["best_heuristic"]] > 0
    assert row["regret_clairvoyant"] == said["regret"]["clairvoyant"][row["best_heuristic"]]


@pytest.mark.parametrize(
    ("number", "most", "expected"),
    [
        (30, [30, 30, 30], [10, 10, 10]),
        (30, [30, 30, 5, 3], [11, 11, 5, 3]),
        (4, [4, 4, 4], [2, 1, 1]),
        (9, [2, 3], [2, 3]),
        (0, [5, 5], [0, 0]),
    ],
)
def test_what_a_short_trace_lacks_the_others_make_up_for(number, most, expected):
    assert benchmark.shared_out(number, most) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["benchmark=smok"], "smoke"),
        (["benchmark=smoke", "env=routing"], "sets env by its tasks"),
        (["benchmark=smoke", "seeds=3"], "sets seeds by its tasks"),
        (["benchmark=smoke", "benchmark.tasks=[dp_pt]"], "did you mean 'dp_tp'"),
        (["benchmark=smoke", "benchmark.blocks=0"], "benchmark.blocks must be at least 1"),
        (["benchmark=smoke", "benchmark.block=3"], "blocks"),
        (["search.horizon=0", "policies=[static_dp]"], "search.horizon must be at least 1"),
    ],
)
def test_mistakes_get_one_sentence(words, expected, tmp_path, capsys):
    assert compare.main([*words, f"out={tmp_path}"]) == USER_ERROR
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    assert expected in said


def test_a_task_says_nothing_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVING_GYM_CONFIG_PATH", str(tmp_path.parent))
    monkeypatch.setattr(benchmark, "TASKS", tmp_path.name)
    (tmp_path / "a.yaml").write_text("words: []\npolicies: [jsq]\nstrata: {}\n")
    with pytest.raises(ValueError, match="at least one workload"):
        load_task("a")
    (tmp_path / "b.yaml").write_text("words: []\npolicie: [jsq]\nstrata: {x: []}\n")
    with pytest.raises(ValueError, match=r"did you mean .b\.policies"):
        load_task("b")
