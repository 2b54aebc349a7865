"""Published figures beside ours."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.interface.commands import Redeploy, SetLayout
from serving_gym.envs.workload.seeding import stream
from serving_gym.runners import reproduce
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.schema import register_schemas
from serving_gym.runners.reproduction.claims import Claim, above, at_least, at_most, near, shown, write_claims
from serving_gym.runners.reproduction.config import PAPERS, ReproduceConfig
from serving_gym.runners.reproduction.flying_serving import switching
from serving_gym.runners.reproduction.flying_serving.study import LLAMA, MODELS
from serving_gym.runners.reproduction.measures import transition_s
from serving_gym.runners.reproduction.parts import Evaluation, Paper, run_parts, total
from serving_gym.runners.reproduction.preserve.study import NUM_SEARCHES, Figures, Study, gain
from serving_gym.runners.reproduction.trials import compose_setting, in_burst, in_quiet, phase_of, run_trials

KEYS = [
    "paper", "claim", "section", "paper_value", "ours", "ours_low", "ours_high", "unit", "kind", "ratio", "holds",
    "verdict", "note", "sensitivity", "cut",
]  # fmt: skip


def claim(ours, rule, paper_value=2.0, **more):
    return Claim("someone", "something", "6", paper_value, ours, "x", rule, **more)


@pytest.mark.parametrize(
    ("rule", "ours", "holds"),
    [
        (near(2.0), 2.19, True),
        (near(2.0), 1.79, False),
        (at_least(2.0), 1.81, True),
        (at_least(2.0), 1.79, False),
        (at_least(2.0), 4.1, False),
        (at_least(2.0, most=math.inf), 164.0, True),
        (at_most(2.0), 0.9, False),
        (at_most(2.0, least=0.0), 0.1, True),
        (at_most(2.0), 2.19, True),
        (at_most(2.0), math.inf, False),
        (above(), 1.05, False),
        (above(), math.inf, True),
        (shown("apples"), 2.0, None),
        (near(2.0), math.nan, None),
    ],
)
def test_rules(rule, ours, holds):
    assert claim(ours, rule).holds is holds


def test_a_claim_says_why_it_fails_and_only_then():
    kept, broken = (claim(ours, near(2.0), note="How.", beyond="Why not.") for ours in (2.0, 3.0))
    assert kept.to_row()["note"] == "Rule: within 10% of 2. How."
    assert broken.to_row()["note"] == "Rule: within 10% of 2. How. Why not."


def test_claims_are_written_in_the_binding_form(tmp_path: Path):
    write_claims(tmp_path, [claim(1.0, near(2.0)), claim(math.inf, above(), paper_value=None)])
    first, second = json.loads((tmp_path / "claims.json").read_text())
    assert list(first) == list(second) == KEYS
    assert first["ratio"] == 0.5
    assert first["holds"] is False
    assert second["paper_value"] is second["ours"] is second["ratio"] is None  # infinite is null
    assert second["holds"] is True


def test_phases_are_those_of_the_arrivals():
    register_schemas()
    words = ["workload=flying_bursty", "workload.num_requests=2000", "split=test"]
    trials = run_trials(words, "static_dp", [0, 1], lambda: None)
    arrivals = [episode.records.arrival_s for episode in trials.episodes]
    for episode, arrival_s in zip(trials.episodes, arrivals, strict=True):
        edges_s = trials.edges_s(episode)
        counts = np.bincount(phase_of(arrival_s, edges_s))[:-1]  # the last one is cut short
        rates = counts / np.diff(edges_s)[: len(counts)]
        assert len(rates) > 1
        assert np.all(rates[0::2] < 7.0)
        assert np.all(rates[1::2] > 7.0)
    burst, quiet = in_burst(trials), in_quiet([trials])
    assert len(burst) == len(quiet) == 4000
    assert not np.any(burst & quiet)
    assert np.all(quiet[: int((arrivals[0] < trials.edges_s(trials.episodes[0])[1]).sum())])


def test_asking_for_phases_does_not_change_the_workload():
    from serving_gym.envs.workload import flying

    traffic, rng = flying.bursty(), stream(3, "x")
    edges_s = traffic.phase_edges_s(200, stream(3, "x"))
    assert np.array_equal(traffic.sample(200, rng).arrival_s, traffic.sample(200, stream(3, "x")).arrival_s)
    assert edges_s[0] == 0.0
    assert np.all(np.diff(edges_s) > 0)


def test_transitions_are_timed():
    register_schemas()
    cluster = compose_setting(LLAMA.words).cluster
    assert transition_s(cluster, SetLayout((4,))) == pytest.approx(0.015)
    assert transition_s(cluster, Redeploy((2, 2))) == pytest.approx(211.97)
    with pytest.raises(ValueError, match="add up"):
        transition_s(cluster, SetLayout((8,)))


def test_table_2_holds():
    register_schemas()
    assert all(found.holds for found in switching.claims())


@pytest.mark.full
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["paper=flying_serving", "quick=true", "requests=200", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert {row["section"] for row in rows} == {"1", "6.2", "6.3", "6.4", "6.5"}
    assert len({row["claim"] for row in rows}) == len(rows)
    assert all(any(row["claim"].startswith(model.name) for row in rows) for model in MODELS)
    assert "Results: " in capsys.readouterr().out


def test_an_unknown_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["paper=flying_servin", f"out={tmp_path}"]) == USER_ERROR
    assert "unknown paper 'flying_servin'; did you mean 'flying_serving'?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_for_preserve(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["paper=preserve", "quick=true", "requests=150", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert {"5.3", "5.4", "5.5"} <= {row["section"] for row in rows}
    assert len({row["claim"] for row in rows}) == len(rows)
    assert all(
        row["ours"] is not None and row["note"]
        for row in rows
        if row["paper_value"] and row["holds"] is not None and row["section"] in ("5.4", "5.5")
    )
    gains = [row for row in rows if row["claim"].endswith("gain of PreServe over Llumnix")]
    assert sorted(row["paper_value"] for row in gains) == [0.413, 0.413, 0.474, 0.474, 0.6658, 0.6658]
    by_claim = {row["claim"]: row for row in rows}
    assert 0 < by_claim["4 engines: a decision of PreServe"]["ours"] < 9700
    assert by_claim["prediction of a response's length"]["ours"] is None
    assert "Results: " in capsys.readouterr().out


def test_a_gain_is_the_share_that_is_saved():
    figures = {
        "preserve": Figures((np.array([1.0, 2.0, 3.0]),), (np.array([0.1, 0.1, 0.3]),), 0.0),
        "llumnix": Figures((np.array([4.0, 4.0, 4.0]),), (np.array([0.3, 0.3, 0.6]),), 0.0),
    }
    ours, theirs = figures["preserve"], figures["llumnix"]
    assert gain(ours.mean_ttft_s, theirs.mean_ttft_s) == 0.5
    assert (ours.violations, theirs.violations) == (pytest.approx(1 / 3), 1.0)
    assert ours.violations_above(0.3) == 0.0
    assert ours.p99_s == pytest.approx(0.296)
    assert gain(1.0, 0.0) != gain(1.0, 0.0)  # NaN: nothing to save
    assert gain(math.inf, 1.0) == -math.inf


def test_light_load_ends_where_a_hundredth_of_the_requests_is_late(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def figures(self, policy, rate_rps, words=(), split=None):
        tried.append((policy, split))
        late = 1 if rate_rps <= 17.3 else 7 if rate_rps <= 18.5 else 8  # of a hundred
        return Figures((np.zeros(100),), (np.array([0.1] * (100 - late) + [0.3] * late),), 0.0)

    monkeypatch.setattr(Study, "figures", figures)
    monkeypatch.setattr(Study, "capacity_rps", 20.0)
    study = Study(ReproduceConfig(out="unused", paper="preserve"), bar=None)
    assert study.light_rps == pytest.approx(17.2)  # in steps of 0.2
    assert study.rate_of(9.3) == study.light_rps
    assert study.loaded_rps == pytest.approx(17.2 * 10.5 / 9.3)
    assert study.matched_rps == pytest.approx(18.6)  # the least at which 7.3 % are
    assert set(tried) == {("least_request", "validation"), ("llumnix", "validation")}
    assert len(tried) <= 2 * NUM_SEARCHES


@pytest.mark.slow
@pytest.mark.reproduction
def test_the_shape_of_the_whole_paper(tmp_path: Path):
    """What the paper's argument stands on, whatever the policy's constants: each static layout has its regime."""
    assert reproduce.main(["paper=flying_serving", f"out={tmp_path}"]) == 0
    rows = {row["claim"]: row for row in json.loads((tmp_path / "claims.json").read_text())}
    for model in MODELS:
        for name in (
            f"{model.name}, bursts: P90 TTFT, TP over Flying Serving",
            f"{model.name}, bursts: mean queue time, TP over Flying Serving",
            f"{model.name}: peak throughput, Flying Serving over DP",
            f"{model.name}: peak throughput, Flying Serving over TP",
        ):
            assert rows[name]["holds"], rows[name]
        tp, dp = (rows[f"{model.name}, light load: mean TTFT of static {x}"]["ours"] for x in ("TP", "DP"))
        assert tp < dp


@pytest.mark.parametrize(
    ("paper", "first"),
    [
        ("flying_serving", "bursts"),
        ("llm_mesh", "examples"),
        ("oserve", "examples"),
        ("preserve", "forecasting"),
        ("sageserve", "planning"),
    ],
)
def test_an_unknown_part_is_refused_with_all_names(
    paper: str, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert reproduce.main([f"paper={paper}", "only=[nothing]", f"out={tmp_path}"]) == USER_ERROR
    err = capsys.readouterr().err
    assert err.startswith(f"error: unknown part of {paper} 'nothing'")
    assert f"(allowed: {first}, " in err
    assert err.count("\n") == 1
    assert not (tmp_path / "claims.json").exists()


def test_parts_that_are_named_are_made_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["paper=flying_serving", "only=[switching]", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert {row["section"] for row in rows} == {"6.4"}
    err = capsys.readouterr().err
    assert all(f"switching: {row['claim']}: " in err for row in rows)


@dataclass(frozen=True)
class Nothing:
    """No choices."""


def evaluation(made: list[str], quick: tuple[str, ...] | None = None) -> Callable[..., Evaluation]:
    """Three parts that say when they were made, of one, two and four steps."""

    def part(name: str) -> list[Claim]:
        made.append(name)
        return [claim(1.0, above(), paper_value=None)]

    names = ("first", "second", "third")
    steps = dict(zip(names, (1, 2, 4), strict=True))
    return lambda config, bar: Evaluation(
        {name: partial(part, name) for name in names}, partial(total, steps), quick
    )


def test_parts_run_in_their_own_order_and_each_as_it_is_asked_for():
    made: list[str] = []
    config = ReproduceConfig(out="unused", only=("third", "first"))
    runs = run_parts(config, Paper(evaluation(made), "step", Nothing))
    assert (next(runs)[0], made) == ("first", ["first"])  # the second has not begun
    assert (next(runs)[0], made) == ("third", ["first", "third"])
    assert list(runs) == []


@pytest.mark.parametrize(
    ("words", "chosen", "steps"),
    [
        ({}, ["first", "second", "third"], 7),
        ({"quick": True}, ["second"], 2),
        ({"quick": True, "only": ("third",)}, ["third"], 4),
    ],
)
def test_which_parts_are_made(words, chosen, steps):
    whole = evaluation([], quick=("second",))(None, None)
    assert whole.chosen(ReproduceConfig(out="unused", **words)) == chosen
    assert whole.num_steps(chosen) == steps


@pytest.mark.parametrize("paper", PAPERS)
def test_the_documentation_lists_a_paper_s_parts(paper: str):
    text = (Path(reproduce.__file__).parent / "reproduction" / "README.md").read_text()
    evaluate = reproduce.PAPERS[paper].evaluation
    parts = evaluate(ReproduceConfig(out="unused", paper=paper), None).parts
    assert f"| `{paper}` | {', '.join(f'`{name}`' for name in parts)} |" in text
