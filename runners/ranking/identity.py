"""Which policy an entry is of: where it is, its hash, its constants, and what its files say of its training."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.agents.checkpoint import (
    CARD,
    find_checkpoint,
    is_saved_model,
    plain,
    read_config,
)
from serving_gym.baselines.fit import check_fits
from serving_gym.baselines.outside import is_outside, make_outside
from serving_gym.baselines.policy import Policy
from serving_gym.runners.configuration.folders import config_file
from serving_gym.runners.configuration.policies import CHECKPOINT, is_checkpoint, load_policy, policy_config
from serving_gym.runners.documentation.tree import ROOT
from serving_gym.runners.ranking.entry import (
    HEURISTIC,
    LEARNED,
    PROGRAM,
    PUBLISHED,
    PolicyStatement,
    Training,
)
from serving_gym.runners.ranking.season import SEALED_FROM
from serving_gym.runners.scoring.program import DecisionTimeout, limited

ZOO = "zoo/"
CHOSEN_ON = "validation"  # split that training chooses its checkpoint on
LONGEST_S = 30.0  # one decision, or the making of a program, at most
FIRST_LONGEST_S = 300.0  # the first decision of an episode, at which planners profile the cluster, at most
_OF_PAPERS = re.compile(
    r"^(?!.*\.(?:common|admission)\.)"
)  # packages of `baselines` that are named after a paper
_PAPER = re.compile(r"arXiv")
_TUNED = re.compile(r"Tuned on .*?\b(train|validation|test|all) split, (\d+) seeds? from (\d+)", re.DOTALL)
_COMMAND = re.compile(r"python -m runners\.tune.*")
_EVALUATIONS = re.compile(r"\bevaluations=(\d+)")
UNTRAINED = Training(splits=(), seeds_below=0, budget="none", command="none")


@dataclass(frozen=True, eq=False)
class Subject:
    """A policy, and what an entry must state of it.

    Attributes:
        policy: The policy.
        statement: Which it is.
        training: What its files say of its training; None: nothing.
    """

    policy: Policy
    statement: PolicyStatement
    training: Training | None


def named(name: str, env: str) -> Subject:
    """The subject of a name that `policy=` takes.

    Args:
        name: Of a policy or a checkpoint of this project, or the folder of a checkpoint.
        env: Environment that it decides in.

    Raises:
        ValueError: There is none, or it does not fit; or it is a class that nobody else has.
    """
    if is_checkpoint(name):
        return _checkpoint(name, name, env)
    policy, config = load_policy(name, env), policy_config(name, env)
    file = config_file("policy", name)
    if is_outside(config["name"]) or not (file is None or file.resolve().is_relative_to(ROOT)):
        raise ValueError(
            f"policy {name!r} is not of this project: give its file, as program=./mine.py:MyPolicy"
        )
    constants = _constants(policy, config)
    kind = PUBLISHED if _is_published(policy) else HEURISTIC
    source = inspect.getsourcefile(type(policy))
    at = Path(file or source or "").resolve()
    statement = PolicyStatement(
        name=name,
        kind=kind,
        clairvoyant=policy.clairvoyant,
        at=at.relative_to(ROOT).as_posix(),
        sha256=hash_of(config["name"], constants),
        constants=constants,
    )
    return Subject(policy, statement, _tuning(file))


def program(target: str, env: str, constants: Mapping[str, Any], folder: Path) -> Subject:
    """The subject of a program.

    Args:
        target: `FILE.py:Class`.
        env: Environment that it decides in.
        constants: Arguments of the class.
        folder: Folder that a relative file is counted from.

    Raises:
        ValueError: It is no policy, or does not fit; or it takes too long to make it.
    """
    name, colon, attribute = target.rpartition(":")
    file = folder / name
    if not colon or file.suffix != ".py":
        raise ValueError(f"a program is FILE.py:Class, got {target!r}")
    if not file.is_file():
        raise ValueError(f"no file {str(file)!r}")
    try:
        with limited(LONGEST_S):
            policy = make_outside(f"{file}:{attribute}", dict(constants))
    except DecisionTimeout:
        raise ValueError(f"program {target!r} takes longer than {LONGEST_S:g} s to be made") from None
    check_fits(target, policy, env)
    statement = PolicyStatement(
        name=str(policy.name),
        kind=PROGRAM,
        clairvoyant=policy.clairvoyant,
        at=f"{file.name}:{attribute}",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        constants=_as_yaml(constants),
    )
    return Subject(policy, statement, None)


def subject_of(statement: PolicyStatement, env: str, folder: Path) -> Subject:
    """The subject that an entry states.

    Args:
        statement: Of the entry.
        env: Name of its environment.
        folder: Folder of its file.

    Raises:
        ValueError: There is none.
    """
    if statement.kind == PROGRAM:
        return program(statement.at, env, statement.constants, folder)
    if statement.kind == LEARNED and not statement.name.startswith(ZOO):
        return _checkpoint(str(folder / statement.at), statement.name, env)
    return named(statement.name, env)


def files_of(subject: Subject, given: str) -> Path | None:
    """File or folder that must lie beside the entry; None: the policy is of this project.

    Args:
        subject: The subject.
        given: What it was made of: a name or a program.
    """
    if subject.statement.kind == PROGRAM:
        return Path(given.rpartition(":")[0])
    if subject.statement.kind == LEARNED and not given.startswith(ZOO):
        return Path(given) if is_saved_model(given) else find_checkpoint(given)
    return None


def hash_of(name: str, constants: Mapping[str, Any]) -> str:
    """SHA-256 of a policy's name and constants."""
    return hashlib.sha256(json.dumps([name, constants], sort_keys=True).encode()).hexdigest()


def _checkpoint(where: str, label: str, env: str) -> Subject:
    """A learned policy.

    Args:
        where: As `policy=` takes it.
        label: Its name in tables.
        env: Environment that it decides in.
    """
    policy = load_policy({"name": CHECKPOINT, "path": where}, env)
    saved = is_saved_model(where)
    folder = Path(where) if saved else find_checkpoint(where)
    at = folder.resolve()
    statement = PolicyStatement(
        name=label,
        kind=LEARNED,
        clairvoyant=policy.clairvoyant,
        at=at.relative_to(ROOT).as_posix() if label.startswith(ZOO) else at.name,
        sha256=_hash_of_files([folder] if saved else sorted(folder.iterdir())),
        constants={},
    )
    return Subject(policy, statement, None if saved else _trained(folder, label))


def _hash_of_files(files: list[Path]) -> str:
    """SHA-256 of names and contents, without the card."""
    digest = hashlib.sha256()
    for path in files:
        if path.is_file() and path.name != CARD:
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _trained(folder: Path, label: str) -> Training:
    """What a checkpoint's settings say."""
    config = read_config(folder)
    minutes, steps = (
        config.get("max_minutes"),
        config.get("total_steps") or config["agent"].get("total_steps"),
    )
    budgets = [f"{minutes:g} minutes"] if minutes else []
    budgets += [f"at most {steps:,} steps"] if steps else []
    split = str(config.get("workload", {}).get("split", "train"))
    return Training(
        splits=tuple(dict.fromkeys((split, CHOSEN_ON))),
        seeds_below=SEALED_FROM,
        budget=", ".join(budgets) or "see the card",
        command=f"agents/{label}/{CARD}" if label.startswith(ZOO) else f"see {CARD}",
    )


def _tuning(file: Path | None) -> Training:
    """What the head of a policy's file says of its tuning."""
    head = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line.lstrip("# ") for line in head if line.startswith("#"))
    found, command = _TUNED.search(text.replace(";", ",")), _COMMAND.search(text)
    if found is None:
        return UNTRAINED
    evaluations = _EVALUATIONS.search(text)
    candidates = f"{evaluations[1]} candidates, " if evaluations else ""
    return Training(
        splits=(found[1],),
        seeds_below=int(found[2]) + int(found[3]),
        budget=f"{candidates}{found[2]} episodes each",
        command=command[0] if command else f"see {file}",
    )


def _is_published(policy: Policy) -> bool:
    """Whether a policy is a paper's: its package is named after one, or its text cites one."""
    cls = type(policy)
    module = inspect.getmodule(cls)
    texts = (cls.__doc__, None if module is None else module.__doc__)
    return bool(_OF_PAPERS.match(f"{cls.__module__}.")) or any(_PAPER.search(text) for text in texts if text)


def _constants(policy: Policy, config: Mapping[str, Any]) -> dict[str, Any]:
    """Constants of a policy, defaults included where they are a dataclass."""
    own = getattr(policy, "config", None)
    given = config.get("params") or {}
    whole = plain(own) if dataclasses.is_dataclass(own) and not isinstance(own, type) else {}
    return _as_yaml({**given, **whole})


def _as_yaml(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants as YAML gives them back."""
    found: dict[str, Any] = json.loads(json.dumps(plain(constants), default=str))
    return found
