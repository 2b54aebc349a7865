"""From a policy's name, or what its config file says, to the policy itself."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from serving_gym.runners.command_line.errors import nearest

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy

_ROOT = Path(__file__).resolve().parents[2]
CONFIG_DIR = _ROOT / "configs"
POLICY_DIR = CONFIG_DIR / "policy"
ZOO_DIR = _ROOT / "agents" / "zoo"
CHECKPOINT = "checkpoint"


def policy_names() -> list[str]:
    """Every policy that has a config file, and every checkpoint of the zoo."""
    files = sorted(path.stem for path in POLICY_DIR.glob("*.yaml"))
    zoo = sorted(
        f"zoo/{path.name}" for path in ZOO_DIR.glob("*") if path.is_dir() and path.name[0] not in "._"
    )
    return files + zoo


def is_checkpoint(name: str) -> bool:
    """Whether a policy's name stands for a folder of learned weights."""
    return checkpoint_dir(name) is not None


def is_pattern(name: str) -> bool:
    """Whether a policy's name stands for several checkpoints: runs/ten/*."""
    return "/" in name and glob.has_magic(name)


def members_of(pattern: str) -> tuple[str, ...]:
    """The checkpoints that a pattern stands for, in the order of their names.

    Args:
        pattern: as runs/ten/*.

    Raises:
        ValueError: They are fewer than two.
    """
    matches = glob.glob(pattern)  # noqa: PTH207 -- a pattern may be absolute, which Path.glob does not take
    found = tuple(sorted(name for name in matches if _holds_checkpoint(name)))
    if len(found) < 2:
        raise ValueError(
            f"{pattern!r} must match the folders of at least two trained agents, it matches {len(found)}"
        )
    return found


def _holds_checkpoint(name: str) -> bool:
    from serving_gym.agents.checkpoint import find_checkpoint

    if not is_checkpoint(name):
        return False
    try:
        find_checkpoint(name)
    except ValueError:
        return False
    return True


def policy_config(name: str) -> dict[str, Any]:
    """Name and parameters of a policy, as the `policy` config group has them.

    Args:
        name: of a file in `configs/policy`, a static layout (`static_4x2`), `zoo/NAME`, or a folder with a checkpoint.

    Raises:
        ValueError: no such policy; names the nearest.
    """
    if (POLICY_DIR / f"{name}.yaml").is_file():
        return composed_file("policy", name)
    config = _without_file(name)
    if config is None:
        raise ValueError(f"unknown policy {name!r}{nearest(name, policy_names())}")
    return config


def policy_label(config: Mapping[str, Any]) -> str:
    """What the policy of the `policy` config group is called in results: a checkpoint by where it lies."""
    if config["name"] == CHECKPOINT:
        return str(config["path"])
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return str(choices.get("policy", config["name"]))


def load_policy(policy: str | Mapping[str, Any]) -> Policy:
    """The policy that a name or the node of the `policy` config group stands for.

    Raises:
        ValueError: no such policy, or a parameter it does not have.
    """
    config = policy_config(policy) if isinstance(policy, str) else policy
    if config["name"] == CHECKPOINT:
        from serving_gym.agents.checkpoint import load_policy as load_checkpoint

        folder = checkpoint_dir(config["path"])
        if folder is None:
            raise ValueError(f"no checkpoint in {config['path']!r}")
        return load_checkpoint(folder)
    from serving_gym.baselines.registry import make_policy

    return make_policy(config["name"], **config.get("params", {}))


def register_choices(words: Sequence[str]) -> list[str]:
    """Makes `policy=zoo/NAME`, `policy=FOLDER` and `policy=static_4x2` choices of the `policy` group.

    Returns:
        The words as Hydra is to read them.
    """
    return [_registered(word) if word.startswith("policy=") else word for word in words]


def _registered(word: str) -> str:
    choices = word.removeprefix("policy=").split(",")
    return "policy=" + ",".join(_as_choice(choice) for choice in choices)


def _as_choice(choice: str) -> str:
    if (POLICY_DIR / f"{choice}.yaml").is_file():
        return choice
    config = _without_file(choice)
    if config is None:
        return choice
    name = choice if config["name"] != CHECKPOINT else re.sub(r"\W+", "_", choice).strip("_")
    ConfigStore.instance().store(group="policy", name=name, node=config)
    return name


def _without_file(name: str) -> dict[str, Any] | None:
    """Config of a policy that needs no file, or None."""
    if is_checkpoint(name):
        return {"name": CHECKPOINT, "path": name}
    if not name.startswith("static_"):
        return None
    from serving_gym.baselines.registry import make_policy

    try:
        make_policy(name)
    except ValueError:
        return None
    return {"name": name, "params": {}}


def composed_file(group: str, name: str) -> dict[str, Any]:
    """A file of a config group with its own defaults.

    Raises:
        ValueError: the group has no such file, naming the nearest; or it leaves something to be given.
    """
    names = sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))
    if name not in names:
        raise ValueError(f"unknown {group} {name!r}{nearest(name, names)}")
    if GlobalHydra.instance().is_initialized():
        config = compose(f"{group}/{name}")
    else:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
            config = compose(f"{group}/{name}")
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
