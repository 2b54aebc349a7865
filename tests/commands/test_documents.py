"""The documents say what there is: links, paths, dotted names, commands, and the choices that commands name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from serving_gym.baselines.registry import POLICIES
from serving_gym.envs.registration import ENVS
from serving_gym.runners.__main__ import commands
from serving_gym.runners.configuration.folders import config_groups, config_names

ROOT = Path(__file__).parents[2]
FRONT = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "configs/benchmark/README.md", "leaderboard/README.md")
]
DOCUMENTS = [*FRONT, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
MOST_WORDS = {"README.md": 1200, "docs/findings.md": 1500}
FOLDERS = (
    "agents",
    "baselines",
    "calibration",
    "configs",
    "docs",
    "envs",
    "examples",
    "leaderboard",
    "runners",
    "tests",
)
_RUN = re.compile(
    r"(?:python -m runners\.|(?:(?<=`)|(?<=    )|(?<=run --rm ))serving-gym )([a-z_]+)((?: |$)[^`\n]*)",
    re.MULTILINE,
)
_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
_DOTTED = re.compile(r"\bserving_gym(?:\.[A-Za-z_]\w*)+")
_ENTRY_POINTS = {"serving_gym.policies", "serving_gym.workloads", "serving_gym.environments"}
# Names that stand for the reader's own, and layouts.
_PLACEHOLDER = re.compile(
    r"[A-Z]|^\.\.\.$|[:/*.]|^(mine|prompts_only|evening|cluster|fewest_tokens)$|^static_\d"
)
_ALSO = {"benchmark": {"smoke", "full", "shift"}, "agent": {"default"}}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", MOST_WORDS)
def test_it_is_short(name: str) -> None:
    assert len((ROOT / name).read_text().split()) < MOST_WORDS[name]


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_paths_are_there(document: Path) -> None:
    paths = [path for path in _PATH.findall(document.read_text()) if not re.search("[A-Z]{2}", path)]
    assert [
        path for path in paths if not any((folder / path).exists() for folder in (ROOT, document.parent))
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_dotted_names_are_there(document: Path) -> None:
    names = set(_DOTTED.findall(document.read_text())) - _ENTRY_POINTS
    assert [name for name in sorted(names) if not exists(name)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_commands_and_their_choices_are_there(document: Path) -> None:
    runs = list(commands_in(document.read_text()))
    assert [name for name, _ in runs if name not in commands()] == []
    assert [word for name, words in runs for word in words if name != "traces" and not known(word)] == []


def test_every_command_policy_and_environment_is_documented() -> None:
    assert [
        name for name in commands() if f"| `{name}` |" not in (ROOT / "docs/commands.md").read_text()
    ] == []
    policies = (ROOT / "docs/policies.md").read_text()
    assert [name for name in POLICIES if f"`{name}`" not in policies and name != "static"] == []
    features = {
        "dp_tp": ("envs.dp_tp.observation", "ENGINE_FEATURES", "CLUSTER_FEATURES", "CLASS_FEATURES"),
        "routing": ("envs.simulator.kernel.features", "PLACE_FEATURES", "REQUEST_FEATURES", "CLUSTER_FEATURES"),
        "deployment": ("envs.deployment.observation", "REPLICA_FEATURES", "TYPE_FEATURES", "CLUSTER_FEATURES"),
        "autoscaling": ("envs.autoscaling.observation", "ENDPOINT_FEATURES", "CLOCK_FEATURES"),
        "sharing": ("envs.simulator.sharing.features", "PLACE_FEATURES", "REQUEST_FEATURES", "CLUSTER_FEATURES"),
    }  # fmt: skip
    assert set(features) == set(ENVS)
    for name, (module, *tables) in features.items():
        page = (ROOT / f"docs/{name}.md").read_text()
        assert f"`{ENVS[name].env_id}`" in page
        of_module = import_module(f"serving_gym.{module}")
        for table in tables:
            rows = "\n".join(f"| `{feature}` |" for feature in getattr(of_module, table))
            shown = re.sub(r"^(\| `\w+` \|).*$", r"\1", page, flags=re.MULTILINE)
            assert rows in shown, f"{table} of {name}"


def test_the_test_command_stands_once_in_the_readme() -> None:
    """`.ci/run` takes it from there."""
    assert len(re.findall(r"^ *pip install .*pytest *$", (ROOT / "README.md").read_text(), re.MULTILINE)) == 1


def test_the_python_of_the_readme_runs() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## In Python\n")[2].partition("\n## ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    assert "seeds=3" in code
    names: dict[str, Any] = {}
    exec(code.replace("seeds=3", "seeds=1"), names)
    assert set(names["result"]["policies"]) == {"jsq", "preserve", "zoo/routing"}
    assert names["info"]["num_refused"] == 0


def test_all_places_state_one_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands that a document shows, with their words."""
    for name, rest in _RUN.findall(text.replace("\\\n", " ")):
        try:
            yield name, shlex.split(rest)
        except ValueError:  # prose with an apostrophe
            yield name, []


def known(word: str) -> bool:
    """Whether the files that a word chooses are there: `workload=NAME`, `policies=[A,B]`."""
    key, _, value = word.partition("=")
    group = {"policies": "policy", "baselines": "policy", "rivals": "policy", "also_clusters": "cluster"}.get(
        key, key
    )
    if group not in config_groups() or not value:
        return True
    names = {*config_names(group), *_ALSO.get(group, ())}
    return all(is_one(name.strip(), names) for name in re.sub(r"^\[|\]$", "", value).split(","))


def is_one(name: str, names: set[str]) -> bool:
    if name.startswith("zoo/"):
        return (ROOT / "agents" / name / "card.md").exists()
    return not name or name in names or bool(_PLACEHOLDER.search(name))


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, _, attribute = name.rpartition(".")
    try:
        if find_spec(name):
            return True
    except ModuleNotFoundError:
        pass
    try:
        found = import_module(module)
    except ModuleNotFoundError:
        return False
    return hasattr(found, attribute)
