"""Reference pages, from the schemas of the configuration and from the classes of policies and agents."""

from __future__ import annotations

from importlib import import_module
from inspect import unwrap
from typing import get_type_hints

from serving_gym.agents.learners.learner import AGENTS
from serving_gym.calibration.lookup import load_attribute
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.registration import ENVS, env_config_class
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.__main__ import commands
from serving_gym.runners.command_line.help import first_words
from serving_gym.runners.configuration.clusters import CLUSTERS
from serving_gym.runners.configuration.folders import CONFIG_DIR
from serving_gym.runners.configuration.schema import BackendConfig, LauncherConfig, TrackerConfig
from serving_gym.runners.documentation.families import family_pages
from serving_gym.runners.documentation.hardware import hardware_page
from serving_gym.runners.documentation.markdown import importable, table
from serving_gym.runners.documentation.schema_tables import Schemas
from serving_gym.runners.documentation.schemas import arguments_of, prose_of

_FOLDER = "reference"


def reference_pages() -> dict[str, str]:
    """Content of each page, by its path in the site."""
    schemas = Schemas()
    pages = {
        "configuration/environments.md": schemas.page(
            "configuration/environments.md",
            "Parts of environments",
            "Fields of an environment itself are on its page. `objective.NAME=VALUE`, `env.randomise.NAME=VALUE` and "
            "so on set what is here.",
            [
                Objective,
                *(
                    item.nested
                    for name, entry in ENVS.items()
                    if entry.package
                    for item in arguments_of(env_config_class(name), ClusterSpec)
                    if item.nested and item.name not in ("cluster", "workload")
                ),
            ],
            ["objective", "experiment"],
        ),
        "configuration/clusters.md": schemas.page(
            "configuration/clusters.md",
            "Clusters",
            "`cluster=FILE` chooses, `cluster.FIELD=VALUE` sets. A file says in its `defaults` which of these it is: "
            + ", ".join(f"`{name}` (`{cls.__name__}`)" for name, cls in CLUSTERS.items())
            + ".",
            CLUSTERS.values(),
            ["cluster"],
        ),
        "configuration/workloads.md": schemas.page(
            "configuration/workloads.md",
            "Workloads",
            "`workload=FILE` chooses, `workload.FIELD=VALUE` sets; `workload.params` are those of its generator.",
            [WorkloadSpec],
            ["workload"],
        ),
        "configuration/running.md": schemas.page(
            "configuration/running.md",
            "Backends, trackers, launchers",
            "Where episodes run, and what follows them.",
            [BackendConfig, TrackerConfig, LauncherConfig],
            ["backend", "tracker", "launcher"],
        ),
        "configuration/agents.md": schemas.page(
            "configuration/agents.md",
            "Agents",
            "`agent=FILE` chooses, `agent.FIELD=VALUE` sets.",
            dict.fromkeys(load_attribute(entry.config) for entry in AGENTS.values()),
            ["agent"],
        ),
    }
    pages["configuration/hardware.md"] = hardware_page()
    for name in commands():
        pages[f"commands/{name}.md"] = command_page(name, schemas)
    pages |= family_pages(schemas)
    return {f"{_FOLDER}/{path}": content for path, content in pages.items()}


def command_page(name: str, schemas: Schemas) -> str:
    """What a command says of itself, the words that people change first, and all its keys.

    Args:
        name: The command.
        schemas: What is written elsewhere.
    """
    module = import_module(f"serving_gym.runners.{name}")
    text = [f"# {name}", prose_of(module)]
    if (CONFIG_DIR / f"{name}.yaml").is_file():
        words = ([f"`{word}`", said] for word, said in first_words(name))
        text += [
            "## Words that people change first",
            table(["word and default", "meaning or choices"], words),
        ]
    hints = get_type_hints(unwrap(module.main))
    if "config" in hints:
        text += ["## All keys", schemas.table_of(hints["config"], f"commands/{name}.md")]
    return importable("\n\n".join(text)) + "\n"
