"""Writes episodes as a Minari dataset (Minari 0.5, `minari/dataset/minari_storage.py`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from hydra.core.override_parser.overrides_parser import OverridesParser

from serving_gym.agents.learners.offline.dataset import NOT_INSTALLED, dataset_folder
from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.envs.registration import Environment, env_id
from serving_gym.runners.configuration.make import GROUPS, environment_of

_MOST_DECISIONS = 131_072  # of an episode: pyarrow hands larger ones to Minari in several batches


class Dataset:
    """A new dataset, to which episodes are added one by one.

    Args:
        folder: Of its data, empty.
        env: The environment.
        spec: How `gymnasium.make` makes it.
        data_format: A format of Minari.
    """

    def __init__(self, folder: Path, env: gym.Env[Any, Any], spec: EnvSpec, data_format: str) -> None:
        from minari.dataset.minari_storage import MinariStorage

        self.id = spec.id
        self._storage = MinariStorage.new(
            folder, env.observation_space, env.action_space, spec, data_format, jpeg_encoding=False
        )
        self.decisions = 0

    def add(self, episode: Mapping[str, Any], seed: int, about: Mapping[str, Any]) -> None:
        """Adds an episode.

        Args:
            episode: Fields of Minari's `EpisodeBuffer`.
            seed: Of the episode.
            about: Metadata of the episode.

        Raises:
            ValueError: It has too many decisions.
        """
        from minari.data_collector.episode_buffer import EpisodeBuffer

        number = len(episode["rewards"])
        if number >= _MOST_DECISIONS:
            raise ValueError(
                f"an episode of {number:,} decisions is too long for Minari, which reads less than "
                f"{_MOST_DECISIONS:,}; lower workload.num_requests"
            )
        at = self._storage.total_episodes
        self._storage.update_episodes([EpisodeBuffer(seed=seed, **episode)])
        self._storage.update_episode_metadata([to_jsonable(dict(about))], [at])
        self.decisions += number

    def describe(self, about: Mapping[str, Any]) -> None:
        """Completes the metadata, without which Minari does not open the dataset.

        Args:
            about: Metadata of the dataset, as plain values.
        """
        self._storage.update_metadata(
            {
                "dataset_id": self.id,
                "minari_version": metadata.version("minari"),
                "requirements": [f"serving-gym=={metadata.version('serving-gym')}"],
                **about,
            }
        )


def free_folder(root: Path, dataset_id: str, data_format: str) -> Path:
    """Where the data of a new dataset go.

    Args:
        root: Folder that Minari finds it in, by its id (`MINARI_DATASETS_PATH=root`).
        dataset_id: Its id.
        data_format: A format of Minari.

    Raises:
        ValueError: Minari or the format's package is missing, or there is a dataset already.
    """
    if find_spec("minari") is None:
        raise ValueError(NOT_INSTALLED.format("runners.collect", "minari"))
    if data_format == "hdf5" and find_spec("h5py") is None:
        raise ValueError("data_format=hdf5 needs the package 'h5py': pip install h5py, or take parquet")
    folder = dataset_folder(root, dataset_id)
    if folder.exists():
        raise ValueError(f"out={str(root)!r} holds a dataset {dataset_id} already; choose another folder")
    return folder


def spec_of(environment: Environment, words: Sequence[str]) -> EnvSpec:
    """How `gymnasium.make` makes an environment of a command.

    Args:
        environment: The environment.
        words: Words of the command line.

    Raises:
        ValueError: These words do not say it, as where the configuration comes from a folder of one's own.
    """
    known = {*environment.arguments, *GROUPS}
    said = {
        override.key_or_group: override.value()
        for override in OverridesParser.create().parse_overrides(list(words))
        if override.key_or_group.removeprefix("env.").partition(".")[0] in known
    }
    said["split"] = environment.arguments["split"]
    if environment_of(environment.name, said) != environment:
        raise ValueError(
            "words of this command change the environment in a way that gymnasium.make does not take; "
            f"it takes settings of env, {', '.join(GROUPS)}, and dotted words in them"
        )
    spec = copy.deepcopy(gym.spec(env_id(environment.name)))
    spec.kwargs |= said
    return spec
