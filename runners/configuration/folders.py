"""Folders of config files: the project's, then the user's.

A user names folders by `--config-dir DIR` or `hydra.searchpath=[file://DIR]`, or by the environment variable
`SERVING_GYM_CONFIG_PATH`, which processes that a command starts inherit. A file there that has the name of one of this
project's is refused, as Hydra would silently take the first.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).resolve().parents[2]
CONFIG_DIR = _ROOT / "configs"
ZOO_DIR = _ROOT / "agents" / "zoo"
VARIABLE = "SERVING_GYM_CONFIG_PATH"
_OPTIONS = ("--config-dir", "-cd")
_SEARCH_PATH = "hydra.searchpath="


def user_folders() -> tuple[Path, ...]:
    """Folders of the user's own config files, in the order in which they are searched."""
    named = (Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder)
    return tuple(folder for folder in named if folder.is_dir())


def config_folders() -> tuple[Path, ...]:
    """All folders of config files, in the order in which they are searched."""
    return (CONFIG_DIR, *user_folders())


def config_names(group: str) -> list[str]:
    """Files of a config group, without their ending."""
    return sorted({path.stem for folder in config_folders() for path in (folder / group).glob("*.yaml")})


def config_groups() -> set[str]:
    """Names of all config groups."""
    return {path.name for folder in config_folders() for path in folder.iterdir() if path.is_dir()}


def config_file(group: str, name: str) -> Path | None:
    """A file of a config group; None: it has none of this name."""
    files = (folder / group / f"{name}.yaml" for folder in config_folders())
    return next((file for file in files if file.is_file()), None)


def search_path() -> list[str]:
    """Overrides that add the user's folders to Hydra's search path."""
    folders = ",".join(f"'file://{folder}'" for folder in user_folders())
    return [f"{_SEARCH_PATH}[{folders}]"] if folders else []


@contextmanager
def folders_of(words: Sequence[str]) -> Iterator[None]:
    """Adds the folders named in a command's overrides while the command runs.

    Raises:
        ValueError: a folder does not exist, or has a file with the name of a project's config.
    """
    before = os.environ.get(VARIABLE)
    folders = [*user_folders(), *(_checked(folder) for folder in _named_by(words))]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(str(folder) for folder in folders))
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def with_search_path(words: Sequence[str]) -> list[str]:
    """The overrides of a command, with all user folders in one `hydra.searchpath`."""
    left, skip = [], False
    for word in words:
        option, equals, _ = word.partition("=")
        named = option in _OPTIONS
        if not (skip or named or word.startswith(_SEARCH_PATH)):
            left.append(word)
        skip = named and not equals
    return [*left, *search_path()]


def values_in(file: Path) -> Mapping[str, Any]:
    """Values of a config file itself, without its defaults."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}


def _named_by(words: Sequence[str]) -> Iterator[str]:
    following = iter(words)
    for word in following:
        option, equals, value = word.partition("=")
        if option in _OPTIONS:
            yield value if equals else next(following, "")
        elif word.startswith(_SEARCH_PATH):
            inside = word.removeprefix(_SEARCH_PATH).strip("[]")
            yield from (each.strip(" '\"") for each in inside.split(",") if each.strip())


def _checked(named: str) -> Path:
    """Checks a folder named in an override.

    Raises:
        ValueError: it does not exist, or has a file with the name of a project's config.
    """
    folder = _of_package(named) if named.startswith("pkg://") else Path(named.removeprefix("file://"))
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(f"no config folder {named!r}")
    for file in folder.rglob("*.yaml"):
        name = file.relative_to(folder)
        if folder != CONFIG_DIR and (CONFIG_DIR / name).is_file():
            raise ValueError(
                f"{str(file)!r} has the name of a config of serving-gym, which Hydra would take instead; rename it"
            )
    return folder


def _of_package(named: str) -> Path:
    package = named.removeprefix("pkg://")
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else Path(named)
