from dataclasses import dataclass, field
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.registration import env_config_class, env_names
from serving_gym.runners.configuration.schema import COMMANDS, SHARED_ENV_FIELDS
from serving_gym.runners.configuration.typed import build, schema_of


@dataclass(frozen=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=lambda: Inner(2))
    many: dict[str, Inner] = field(default_factory=dict)
    pair: tuple[int, ...] | None = None
    several: tuple[Inner, ...] = (Inner(3),)


def test_round_trip() -> None:
    config = OmegaConf.merge(
        OmegaConf.structured(schema_of(Outer)), {"name": "x", "pair": [1, 2], "many": {"a": {"size": 5}}}
    )
    values: Any = OmegaConf.to_container(config)
    assert build(Outer, values) == Outer("x", Inner(2), {"a": Inner(5)}, (1, 2))


def test_the_mirror_refuses_and_the_real_one_checks() -> None:
    with pytest.raises(ConfigKeyError, match="nane"):
        OmegaConf.merge(OmegaConf.structured(schema_of(Outer)), {"nane": "x"})
    with pytest.raises(ValueError, match=r"unknown key 'run.inner.sise'; did you mean 'run.inner.size'"):
        build(Outer, {"name": "x", "inner": {"sise": 1}}, "run.")
    with pytest.raises(ValueError, match="must not be negative"):
        build(Outer, {"name": "x", "inner": {"size": -1}})


def test_omitted_and_extra_fields() -> None:
    mirror = OmegaConf.structured(schema_of(Outer, omit=("inner", "many"), kind=str))
    assert set(mirror) == {"kind", "name", "pair", "several"}


@pytest.mark.parametrize("config", [*COMMANDS.values(), ClusterSpec])
def test_every_schema_is_one_omegaconf_takes(config: type) -> None:
    assert OmegaConf.structured(schema_of(config)) is not None


@pytest.mark.parametrize("name", env_names())
def test_every_env_has_a_schema(name: str) -> None:
    mirror = OmegaConf.structured(schema_of(env_config_class(name), omit=SHARED_ENV_FIELDS, name=str))
    assert "name" in set(mirror)
    assert not set(mirror) & set(SHARED_ENV_FIELDS)
