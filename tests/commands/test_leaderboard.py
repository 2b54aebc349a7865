"""Entries are added by a stranger's route, run again, and refused where they are forged; the page is what they say."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving_gym.agents.checkpoint import ZOO
from serving_gym.runners import leaderboard
from serving_gym.runners.benchmark.benchmark import load_task
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.ranking.entry import Entry, entries_in, read_entry
from serving_gym.runners.ranking.identity import named
from serving_gym.runners.ranking.page import PAGE, gain, page
from serving_gym.runners.ranking.season import FOLDER, first_seed_of, load_season, season_names
from serving_gym.runners.ranking.validation import validate
from tests.tiers import full_except

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_policy"
OWN = "program=./fewest_tokens.py:FewestTokensPolicy"
DAY = datetime.date(2026, 12, 5)
SEASON, SALT = "2026-12", "salt"
Edit = Callable[[dict[str, Any]], object]


def terms(limit_ms: float = 10_000.0) -> dict[str, Any]:
    """A season of tiny episodes."""
    board = {
        "words": ["env=routing", "workload.num_requests=40"],
        "episodes": 2,
        "reference": "jsq",
        "task": "routing_mixed",
        "also": [],
        "decision_limit_ms": limit_ms,
    }
    return {
        "opens": datetime.date(2026, 12, 1),
        "closes": datetime.date(2027, 2, 28),
        "salt": SALT,
        "first_seed": first_seed_of(SEASON, SALT),
        "split": "test",
        "boards": {"routing": board, "other": {**board, "episodes": 3}},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A leaderboard of its own, and a stranger's folder as the current one."""
    shutil.copytree(EXAMPLE, tmp_path / "mine")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    write_terms(tmp_path / "leaderboard", terms())
    return tmp_path / "leaderboard"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of an entry of `linear_score_tuned` that holds."""
    board = tmp_path_factory.mktemp("honest") / "leaderboard"
    write_terms(board, terms())
    words = ["add", "env=routing", "policy=linear_score_tuned", "by=tests", f"folder={board}"]
    assert leaderboard.main(words, DAY) == 0
    return (board / SEASON / "routing" / "linear_score_tuned.yaml").read_text()


def write_terms(board: Path, values: dict[str, Any]) -> None:
    (board / SEASON).mkdir(parents=True, exist_ok=True)
    (board / SEASON / "season.yaml").write_text(yaml.safe_dump(values))


def add(board: Path, *words: str) -> int:
    return leaderboard.main(["add", "env=routing", f"folder={board}", *words], DAY)


def written(board: Path, honest: str, edit: Edit) -> Path:
    """The honest entry after an edit."""
    values = yaml.safe_load(honest)
    edit(values)
    path = board / SEASON / "routing" / "forged.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


def verdict(board: Path, path: Path, capsys: pytest.CaptureFixture[str], status: int, *words: str) -> str:
    """The last line of a validation."""
    capsys.readouterr()
    assert leaderboard.main(["validate", str(path), f"folder={board}", *words]) == status
    return capsys.readouterr().out.strip().splitlines()[-1]


def test_a_stranger_adds_a_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(folder, OWN, "by=A Stranger", "params={output_weight: 0.5}") == 0
    path = folder / SEASON / "routing" / "fewest_tokens.yaml"
    said = capsys.readouterr().out
    assert f"python -m runners.leaderboard validate {path}" in said
    assert "pull request" in said
    entry = read_entry(path)
    assert (entry.by, entry.policy.kind, entry.policy.at) == (
        "A Stranger",
        "program",
        "fewest_tokens.py:FewestTokensPolicy",
    )
    assert entry.policy.constants == {"output_weight": 0.5}
    assert path.with_suffix(".py").read_bytes() == (EXAMPLE / "fewest_tokens.py").read_bytes()
    Path("fewest_tokens.py").unlink()  # what counts lies beside the entry
    assert verdict(folder, path, capsys, 0).startswith(f"holds: {path}: 2 episodes run again")
    assert leaderboard.main(["table", f"folder={folder}"]) == 0
    assert (
        "[`fewest_tokens`](../leaderboard/2026-12/routing/fewest_tokens.yaml) | program |"
        in (folder.parent / PAGE).read_text()
    )
    path.with_suffix(".py").write_text((EXAMPLE / "fewest_tokens.py").read_text() + "\n")
    assert f"policy.sha256: the entry states {entry.policy.sha256}, but the file has" in verdict(
        folder, path, capsys, 1
    )


def test_a_stranger_adds_a_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ZOO / "routing_five_minutes", "run/checkpoint")
    assert add(folder, "policy=run/checkpoint", "name=mine", "by=A Stranger") == 0
    path = folder / SEASON / "routing" / "mine.yaml"
    assert read_entry(path).training.splits == ("train", "validation")
    shutil.rmtree("run")
    assert verdict(folder, path, capsys, 0).startswith("holds: ")
    config = path.with_suffix("") / "config.yaml"
    values = yaml.safe_load(config.read_text())
    values["workload"]["split"] = "test"
    config.write_text(yaml.safe_dump(values))
    assert "policy.sha256" in verdict(folder, path, capsys, 1)
    shutil.copytree(config.parent, "tested")
    assert add(folder, "policy=./tested", "name=tested", "by=A Stranger") == USER_ERROR
    assert "training.splits: the entry states test" in capsys.readouterr().err
    assert not (path.parent / "tested.yaml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policy=jsk", "by=x"], "unknown policy 'jsk'; did you mean 'jsq'"),
        (["policy=jsq"], "say who adds the entry"),
        (["by=x"], "give policy=NAME or program=FILE.py:Class"),
        (["program=fewest_tokens.py", "by=x"], "a program is FILE.py:Class, got 'fewest_tokens.py'"),
        (["program=./absent.py:X", "by=x"], "no file 'absent.py'"),
        (["policy=static_tp", "by=x"], "policy 'static_tp' does not fit env=routing"),
        (["policy=./fewest_tokens.py:FewestTokensPolicy", "by=x"], "is not of this project: give its file"),
        (["policy=jsq", "by=x", "polic=jsq"], "unknown word 'polic'; did you mean 'policy'?"),
        (["policy=jsq", "by=x", "all=maybe"], "all must be true or false, got 'maybe'"),
        (["policy=jsq", "by=x", "all=true"], "all=true adds the policies of this project: leave policy out"),
        ([OWN, "by=x", "splits=[test]"], "seeds_below is missing"),
        (
            [OWN, "by=x", "splits=[test]", "seeds_below=5", "budget=1 h", "command=none"],
            "training.splits: the entry states test",
        ),
        (
            [OWN, "by=x", "splits=[train]", "seeds_below=1000001", "budget=1 h", "command=none"],
            "training.seeds_below: the entry states 1000001, but seeds from 1000000 on are sealed",
        ),
    ],
)
def test_what_cannot_be_added(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(folder, *words) == USER_ERROR
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert list(entries_in(folder)) == []


def test_a_program_that_fails_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLE / "fewest_tokens.py").read_text()
    Path("failing.py").write_text(text.replace("flights = state.in_flight", "raise KeyError('x')"))
    assert add(folder, "program=./failing.py:FewestTokensPolicy", "by=x") == USER_ERROR
    assert "program 'fewest_tokens' failed: KeyError: 'x'" in capsys.readouterr().err


def test_entries_of_others_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(folder, OWN, "by=A Stranger") == 0
    assert add(folder, OWN, "by=A Stranger") == 0
    assert add(folder, OWN, "by=Another") == USER_ERROR
    assert "is an entry of 'fewest_tokens' by A Stranger: choose another name=NAME" in capsys.readouterr().err
    assert add(folder, OWN, "by=Another", "name=fewest tokens 2") == 0
    assert {entry.by for _, entry in entries_in(folder)} == {"A Stranger", "Another"}


def change(**values: Any) -> Edit:
    """An edit of keys, `__` between nested ones; `...` removes one."""

    def edit(entry: dict[str, Any]) -> None:
        for key, value in values.items():
            *parents, last = key.split("__")
            place = entry
            for parent in parents:
                place = place[parent]
            if value is ...:
                del place[last]
            else:
                place[last] = value

    return edit


def with_better_returns(entry: dict[str, Any]) -> None:
    """A forgery whose arithmetic is right."""
    entry["returns"] = [0.5 * value for value in entry["returns"]]
    figures = entry["figures"]
    figures["mean_return"] *= 0.5
    figures["ci95"] = [0.5 * end for end in figures["ci95"]]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (change(figures__mean_return=-0.001), "figures.mean_return: the entry states -0.001, but its returns have"),
        (change(figures__ci95=[-1.0, -0.5]), "figures.ci95: the entry states -1.0, but its returns have"),
        (with_better_returns, "returns[0]: stated"),
        (change(figures__slo_attainment=0.123), "figures.slo_attainment: stated 0.123, measured"),
        (change(figures__ttft_p99_s=1e-3), "figures.ttft_p99_s: stated 0.001, measured"),
        (change(figures__decision_ms_p99=10_001.0), "the limit is 10000 ms, the entry states 10001 ms a decision"),
        (change(figures__decision_ms_median=1e-9), "figures.decision_ms_median: stated 1e-09 ms, measured"),
        (change(figures__decision_ms_p99=1e-9), "figures.decision_ms_p99: stated 1e-09 ms, measured"),
        (change(figures__decision_ms_median=float("nan")), "figures.decision_ms_median: stated nan ms, measured"),
        (change(figures__mean_return=float("nan")), "figures.mean_return: the entry states nan"),
        (change(figures__decision_ms_p99=...), "figures.decision_ms_p99 is missing"),
        (change(by=...), "by is missing"),
        (change(by=" "), "by must say who adds the entry"),
        (change(figures__speed=1.0), "unknown key 'figures.speed'"),
        (change(figures__slo_attainment="high"), "figures.slo_attainment must be a number, got 'high'"),
        (change(policy__clairvoyant=1), "policy.clairvoyant must be true or false, got 1"),
        (change(format=2), "format must be 1, got 2"),
        (change(policy__name="linear_scor_tuned"), "unknown policy 'linear_scor_tuned'; did you mean"),
        (change(policy__sha256="0" * 64), "policy.sha256: the entry states 000"),
        (change(policy__kind="learned"), "no checkpoint in"),
        (change(policy__kind="clever"), "unknown policy.kind 'clever'"),
        (change(policy__clairvoyant=True), "policy.clairvoyant: the entry states True, but the policy has False"),
        (
            change(policy__constants__waiting=-9.0),
            "policy.constants.waiting: the entry states -9.0, but the policy has -2.169 since: add it again",
        ),
        (change(training__splits=["validation", "test"]), "training.splits: the entry states test"),
        (change(training__splits=[]), "training.splits: the entry states [], but the policy's files say [validation]"),
        (change(training__seeds_below=2_000_000), "training.seeds_below: the entry states 2000000"),
        (change(seeds__first=5), "seeds.first: the entry states 5, but season 2026-12 has"),
        (change(seeds__split="train"), "seeds.split: the entry states train"),
        (change(returns=[1.0]), "returns: the entry states 1 values"),
        (change(environment__words=["env=routing"]), "environment.words: the entry states [env=routing]"),
        (change(environment__id="Serving/Routing-v0"), "environment.id: the entry states Serving/Routing-v0"),
        (change(environment__id="Serving/DPTP-v1"), "but this version has Serving/Routing-v1"),
        (change(season="2026-11"), "unknown season '2026-11'"),
        (change(board="routin"), "unknown board 'routin'"),
        (change(board="other"), "board: the entry states other, but its file is in the folder 'routing'"),
        (change(added=datetime.date(2027, 3, 1)), "added: the entry states 2027-03-01"),
    ],
)  # fmt: skip
def test_forged_entries_are_refused(
    edit: Edit, said: str, folder: Path, honest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = verdict(folder, written(folder, honest, edit), capsys, 1)
    assert last.startswith("refused: ")
    assert said in last


def test_an_honest_entry_holds_with_other_versions_too(
    folder: Path, honest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(folder, honest, change(versions__numpy="1.0.0"))
    capsys.readouterr()
    assert leaderboard.main(["validate", str(path), f"folder={folder}"]) == 0
    said = capsys.readouterr().out
    assert "note: numpy: the entry was measured with 1.0.0, this is " in said
    assert "largest difference 0 %" in said
    assert verdict(folder, path, capsys, 0, "run=false").startswith("holds without a run: ")


def test_a_measured_decision_time_is_held_to_the_limit(
    folder: Path, honest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_terms(folder, terms(limit_ms=1e-6))
    path = written(folder, honest, change(figures__decision_ms_p99=1e-7))
    assert "the limit is 1e-06 ms, the entry was measured with" in verdict(folder, path, capsys, 1)
    assert add(folder, "policy=jsq", "by=x") == USER_ERROR
    assert "the limit is 1e-06 ms" in capsys.readouterr().err


def test_several_files_have_a_verdict_each(
    folder: Path, honest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(folder, honest, change())
    broken = path.with_name("broken.yaml")
    broken.write_text("[")
    words = [
        "validate",
        str(path),
        str(broken),
        str(path.with_name("absent.yaml")),
        f"folder={folder}",
        "run=false",
    ]
    assert leaderboard.main(words) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("holds without a run")
    assert "broken.yaml is no YAML" in said[1]
    assert "no file" in said[2]
    assert said[3] == "1 of 3 entries hold"


def test_gains_ranks_and_clairvoyant_policies(folder: Path) -> None:
    text = (EXAMPLE / "fewest_tokens.py").read_text()
    Path("seer.py").write_text(text.replace("clairvoyant = False", "clairvoyant = True"))
    assert add(folder, "program=./seer.py:FewestTokensPolicy", "by=x", "name=seer") == 0
    for policy in ("round_robin", "jsq"):
        assert add(folder, f"policy={policy}", "by=x") == 0
    entries = {entry.policy.name: entry for _, entry in entries_in(folder)}
    shown = page(folder)
    ranked = sorted(("round_robin", "jsq"), key=lambda name: -entries[name].figures.mean_return)
    places = [shown.index(f"| {i} | [`{name}`]") for i, name in enumerate(ranked, start=1)]
    assert places == sorted(places)
    causal, _, seeing = shown.partition("Clairvoyant, for comparison")
    assert "`seer`" in seeing
    assert "`seer`" not in causal
    assert gain(entries["round_robin"], entries["jsq"]) in causal
    assert gain(entries["jsq"], entries["jsq"]) == "+0.0 % [0.0, 0.0]"
    assert "### other" in shown
    assert "No entry yet." in shown


def test_all_adds_what_is_missing_or_has_changed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("jsq", "round_robin", "linear_score_tuned")
    monkeypatch.setattr("serving_gym.runners.ranking.adding.Adder.policies", lambda self: few)
    assert add(folder, "all=true", "by=x") == 0
    assert "added: 3 entries of board routing" in capsys.readouterr().out
    path = folder / SEASON / "routing" / "linear_score_tuned.yaml"
    values = yaml.safe_load(path.read_text())
    change(policy__constants__waiting=-9.0)(values)
    path.write_text(yaml.safe_dump(values))
    (folder / SEASON / "routing" / "jsq.yaml").unlink()
    assert add(folder, "all=true", "changed=true", "by=x") == 0
    assert "added: 2 entries of board routing" in capsys.readouterr().out
    assert read_entry(path).policy.constants["waiting"] == -2.169


def test_seasons_follow_their_rule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (datetime.date(2026, 11, 30), datetime.date(2027, 3, 1)):
        words = ["add", "env=routing", "policy=jsq", "by=x", f"folder={folder}"]
        assert leaderboard.main(words, day) == USER_ERROR
        assert f"no season is open on {day}: 2026-12, the last, is from 2026-12-01" in capsys.readouterr().err
    write_terms(folder, {**terms(), "first_seed": 46_000_000})
    with pytest.raises(ValueError, match=f"first_seed must be {first_seed_of(SEASON, SALT)} by the rule"):
        load_season(SEASON, folder)
    assert first_seed_of("2026-12", "a") != first_seed_of("2027-03", "a")
    assert all(2_000_000 <= first_seed_of(str(i), "") < 9_000_000 for i in range(200))
    shutil.rmtree(folder / SEASON)
    assert leaderboard.main(["table", f"folder={folder}"]) == USER_ERROR
    assert "run this in a clone of the repository" in capsys.readouterr().err


def test_kinds_and_trainings_come_from_files() -> None:
    assert named("jsq", "routing").statement.kind == "heuristic"
    assert named("llumnix", "routing").statement.kind == "published"
    assert named("lmetric", "routing").statement.kind == "published"
    tuned = named("linear_score_tuned", "routing").training
    assert tuned is not None
    assert (tuned.splits, tuned.seeds_below, tuned.budget) == (
        ("validation",),
        24,
        "1200 candidates, 24 episodes each",
    )
    assert tuned.command.startswith("python -m runners.tune env=routing policy=linear_score ")
    several = named("dynamo_kv_tuned", "routing").training
    assert several is not None
    assert (several.splits, several.seeds_below) == (("validation",), 2)
    assert named("jsq", "routing").training == named("round_robin", "routing").training


# -- the repository's own ----------------------------------------------------------------------------------------------

COMMITTED = dict(entries_in(FOLDER))
# Results of ended seasons stay, whatever their policies have become.
NEWEST = [path for path, entry in COMMITTED.items() if entry.season == season_names(FOLDER)[-1]]
AGAIN = "python -m runners.leaderboard add board={} all=true changed=true by=serving-gym"


def of(path: Path) -> str:
    return "/".join(path.with_suffix("").parts[-3:])


def test_the_page_is_what_the_entries_say() -> None:
    assert (ROOT / PAGE).read_text() == page(FOLDER), "write it again: python -m runners.leaderboard table"


def test_boards_name_what_there_is() -> None:
    for name in season_names(FOLDER):
        for board in load_season(name, FOLDER).boards.values():
            assert board.reference in load_task(board.task).policies


def test_committed_entries_are_of_their_season_and_complete() -> None:
    for path, entry in COMMITTED.items():
        season = load_season(entry.season, FOLDER)
        assert (path.parent.name, path.parent.parent.name) == (entry.board, entry.season)
        assert season.opens <= entry.added <= season.closes
        assert len(entry.returns) == entry.seeds.episodes == season.board(entry.board).episodes


@pytest.mark.full
@pytest.mark.parametrize("path", NEWEST, ids=of)
def test_committed_entries_are_of_the_present_policies(path: Path) -> None:
    entry: Entry = COMMITTED[path]
    try:
        refused = ""
        validate(entry, path, FOLDER, run=False)
    except ValueError as error:
        refused = str(error)
    assert not refused, AGAIN.format(entry.board)


@pytest.mark.parametrize(
    "name",
    full_except(["routing/round_robin", "routing/zoo_routing", "dp_tp/static_4x2"], "routing/round_robin"),
)
def test_committed_entries_come_again(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = FOLDER / "2026-12" / f"{name}.yaml"
    assert verdict(FOLDER, path, capsys, 0).startswith("holds: ")
