"""Resolves policy names, config files and checkpoints to policies."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from serving_gym.calibration.lookup import nearest
from serving_gym.runners.configuration.folders import (
    CONFIG_DIR,
    ZOO_DIR,
    config_file,
    config_names,
    search_path,
)
from serving_gym.runners.configuration.words import parts_of, pattern_of, quoted

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy

CHECKPOINT = "checkpoint"
_SUGGESTIONS = 3  # suggestions in a message about an unknown policy
_CANDIDATES = 24  # names most like an unknown one among which those of its environment are looked for


def policy_names() -> list[str]:
    """Every policy that has a config file or an entry point, and every checkpoint of the zoo."""
    from serving_gym.baselines.outside import policy_entry_points

    zoo = sorted(
        f"zoo/{path.name}" for path in ZOO_DIR.glob("*") if path.is_dir() and path.name[0] not in "._"
    )
    return [*config_names("policy"), *policy_entry_points(), *zoo]


def is_checkpoint(name: str) -> bool:
    """Whether a policy's name is that of a checkpoint: a folder, or a saved Stable-Baselines3 model."""
    return checkpoint_dir(name) is not None or _is_saved_model(name)


def _is_saved_model(name: str) -> bool:
    return name.endswith(".zip") and Path(name).is_file()


def is_pattern(name: str) -> bool:
    """Whether a policy's name is a pattern of several checkpoints: runs/ten/*."""
    return "/" in name and glob.has_magic(name) and not Path(name).exists()


def members_of(pattern: str) -> tuple[str, ...]:
    """The checkpoints that match a pattern, in the order of their names.

    Args:
        pattern: as runs/ten/*.

    Raises:
        ValueError: Fewer than two checkpoints match.
    """
    matches = glob.glob(pattern_of(pattern))  # noqa: PTH207 -- a pattern may be absolute, which Path.glob does not take
    found = tuple(sorted(name for name in matches if _holds_checkpoint(name)))
    if len(found) < 2:
        raise ValueError(
            f"{pattern!r} must match the folders of at least two trained agents, it matches {len(found)}"
        )
    return found


def _holds_checkpoint(name: str) -> bool:
    from serving_gym.agents.checkpoint import find_checkpoint

    if not is_checkpoint(name) or _is_saved_model(name):
        return _is_saved_model(name)
    try:
        find_checkpoint(name)
    except ValueError:
        return False
    return True


def policy_config(name: str, env: str | None = None) -> dict[str, Any]:
    """Name and parameters of a policy, as the `policy` config group has them.

    Args:
        name: of a file in `configs/policy` or in the user's own config folder, a static layout (`static_4x2`),
            `zoo/NAME`, a folder with a checkpoint, a saved Stable-Baselines3 model (`model.zip`), a class
            (`module:Class`, `./file.py:Class`), or one that an installed package has an entry point for.
        env: environment that it is for, whose policies a message about an unknown one suggests; None: any.

    Raises:
        ValueError: no such policy; names the nearest.
    """
    if config_file("policy", name) is not None:
        return composed_file("policy", name)
    config = _without_file(name)
    if config is None:
        raise ValueError(unknown_policy(name, env))
    return config


def unknown_policy(name: str, env: str | None) -> str:
    """The message about an unknown policy, with the nearest three that decide in an environment."""
    if name.endswith((".zip", ".py")) or ("/" in name and not name.startswith("zoo/")):
        return f"unknown policy {name!r}: there is no such file, nor a folder with a checkpoint"
    if env is None:
        return f"unknown policy {name!r}{nearest(name, sorted(policy_names()))}"
    close = get_close_matches(name, policy_names(), n=_CANDIDATES, cutoff=0.0)
    near = list(islice((each for each in close if _decides_in(each, env)), _SUGGESTIONS))
    if not near:
        return f"unknown policy {name!r} (of env={env})"
    *others, last = [repr(each) for each in near]
    hint = f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
    return f"unknown policy {name!r}{hint} (of env={env})"


def _decides_in(name: str, env: str) -> bool:
    """Whether a policy decides in an environment, as far as known without building it."""
    from serving_gym.agents.checkpoint import trained_in
    from serving_gym.baselines.fit import fits

    try:
        if is_checkpoint(name):
            return trained_in(name) == env
        if config_file("policy", name) is None:
            return fits(name, env)
        return fits(str(composed_file("policy", name)["name"]), env)
    except ValueError:  # broken files of the user are not suggested
        return False


def policy_label(config: Mapping[str, Any]) -> str:
    """Name in results of the policy of the `policy` config group; its path if it is not part of the project."""
    if config["name"] == CHECKPOINT:
        path = Path(config["path"])
        return f"zoo/{path.name}" if path.parent.resolve() == ZOO_DIR.resolve() else str(path)
    if ":" in str(config["name"]):
        return str(config["name"])
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return str(choices.get("policy", config["name"]))


def load_policy(policy: str | Mapping[str, Any], env: str | None = None) -> Policy:
    """Builds the policy of a name or of the `policy` config group.

    Args:
        policy: See `policy_config`.
        env: Environment that it is for, which it must fit; None: not known.

    Raises:
        ValueError: the policy or one of its parameters is unknown, or it decides in another environment.
    """
    config = policy_config(policy, env) if isinstance(policy, str) else policy
    label = policy if isinstance(policy, str) else policy_label(config)
    if config["name"] == CHECKPOINT:
        return _load_checkpoint(str(config["path"]), label, env)
    from serving_gym.baselines.fit import check_fits
    from serving_gym.baselines.registry import make_policy

    made = make_policy(config["name"], **config.get("params", {}))
    if env is not None:
        check_fits(label, made, env)
    return made


def load_policies(names: Iterable[str], env: Any, env_name: str) -> dict[str, Policy]:
    """Policies by name, all of which fit an environment.

    Args:
        names: See `policy_config`.
        env: The environment.
        env_name: Its name.

    Raises:
        ValueError: a policy does not exist or does not fit; no episode has run then.
    """
    policies = {name: load_policy(name, env_name) for name in names}
    for policy in policies.values():
        check_spaces(policy, env)
    return policies


def check_spaces(policy: Policy, env: Any) -> None:
    """Checks that a saved model has the spaces of the environment.

    Raises:
        ValueError: the spaces differ; says in what.
    """
    check = getattr(policy, "check_spaces", None)
    if check is not None:
        check(env.observation_space, env.action_space)


def _load_checkpoint(path: str, label: str, env: str | None) -> Policy:
    from serving_gym.agents.checkpoint import load_policy as load_checkpoint
    from serving_gym.agents.checkpoint import trained_in

    if not is_checkpoint(path):
        raise ValueError(f"no checkpoint in {path!r}")
    where: str | Path = path if _is_saved_model(path) else checkpoint_dir(path) or path
    own = trained_in(where)
    if env is not None and own is not None and own != env:
        raise ValueError(f"policy {label!r} does not fit env={env}: it was trained in env={own}")
    return load_checkpoint(where)


def register_choices(words: Sequence[str]) -> list[str]:
    """Makes `policy=zoo/NAME`, `policy=FOLDER`, `policy=static_4x2` and the like choices of the `policy` group.

    Returns:
        The overrides, with paths quoted where Hydra needs it.
    """
    return [_registered(word) if word.startswith("policy=") else quoted(word) for word in words]


def _registered(word: str) -> str:
    choices = parts_of(word.removeprefix("policy="))
    return "policy=" + ",".join(_as_choice(choice.strip("'\"")) for choice in choices)


def _as_choice(choice: str) -> str:
    if config_file("policy", choice) is not None:
        return choice
    config = _without_file(choice)
    if config is None:
        return choice
    name = choice if re.fullmatch(r"\w[\w+]*", choice) else re.sub(r"\W+", "_", choice).strip("_")
    ConfigStore.instance().store(group="policy", name=name, node=config)
    return name


def _without_file(name: str) -> dict[str, Any] | None:
    """Config of a policy that needs no file, or None."""
    if is_checkpoint(name):
        return {"name": CHECKPOINT, "path": name}
    from serving_gym.baselines.outside import is_outside, outside_params
    from serving_gym.baselines.registry import POLICIES, make_policy

    if (composed := _with_router(name)) is not None:
        return composed
    if name not in POLICIES and is_outside(name):
        return {"name": name, "params": outside_params(name)}
    if not name.startswith("static_"):
        return None
    try:
        make_policy(name)
    except ValueError:
        return None
    return {"name": name, "params": {}}


def _with_router(name: str) -> dict[str, Any] | None:
    """Config of an admission policy and of the policy that places what it lets in, `tier_shed+jsq`; None: it is none.

    Raises:
        ValueError: there is no such policy behind the +, or it is a checkpoint.
    """
    from serving_gym.baselines.registry import ROUTER, WITH, is_admitter, parts_of

    first, _, second = name.partition(WITH)
    if not second or config_file("policy", first) is None:
        return None
    own = composed_file("policy", first)
    admitter = parts_of(str(own["name"]))[0]
    if not is_admitter(admitter):
        return None
    router = policy_config(second, "routing")
    if router["name"] == CHECKPOINT:
        raise ValueError(
            f"policy {name!r}: a checkpoint decides about admission itself; name a heuristic behind the +"
        )
    params = {**own.get("params", {}), ROUTER: dict(router.get("params", {}))}
    return {"name": f"{admitter}{WITH}{router['name']}", "params": params}


def composed_file(group: str, name: str) -> dict[str, Any]:
    """A file of a config group with its own defaults.

    Raises:
        ValueError: the group has no such file, naming the nearest; or it leaves something to be given.
    """
    names = config_names(group)
    if name not in names:
        raise ValueError(f"unknown {group} {name!r}{nearest(name, sorted(names))}")
    if GlobalHydra.instance().is_initialized():
        config = compose(overrides=[*search_path(), f"+{group}={name}"])
    else:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
            config = compose(overrides=[*search_path(), f"+{group}={name}"])
    if missing := sorted(OmegaConf.missing_keys(config[group])):
        raise ValueError(
            f"{group} {name!r} leaves {', '.join(missing)} to be given, which its name alone does not do; "
            f"write a file in configs/{group} that says it"
        )
    return cast(dict[str, Any], OmegaConf.to_container(config[group], resolve=True))


def checkpoint_dir(name: str) -> Path | None:
    """Folder of a checkpoint: of the zoo, or anywhere."""
    zoo = ZOO_DIR / name.removeprefix("zoo/")
    if name.startswith("zoo/") and zoo.is_dir():
        return zoo
    return Path(name) if "/" in name and Path(name).is_dir() else None
