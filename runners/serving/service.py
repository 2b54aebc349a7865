"""The served policy, which all listeners of the process share: decisions, counters and log."""

from __future__ import annotations

import json
import logging
import logging.handlers
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from serving_gym.runners.configuration.policies import check_spaces, load_policy
from serving_gym.runners.live.attach import check_installed
from serving_gym.runners.serving.host import Answer, PolicyHost
from serving_gym.runners.serving.served import served_environment

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter

    from serving_gym.runners.serving.config import ServeConfig

LOG_FILE = "serve.jsonl"  # in `out`
_LOG_BYTES, _LOG_FILES = 16 * 2**20, 4


class PolicyService:
    """A policy to be served.

    Attributes:
        config: The configuration.
        env: The environment of the setting, simulated; `env.config` and `env.policy_spec` describe it.
        host: The policy, in this process.
        registry: What `/metrics` shows.
        log: Writes `serve.jsonl` in `config.out`: one object a line, `at_s` (Unix time), `level`, `event`, and the
            fields given as `extra={"fields": {...}}`.

    Args:
        config: The configuration.
        env: The environment.
        host: The policy.
    """

    def __init__(self, config: ServeConfig, env: Any, host: PolicyHost) -> None:
        from prometheus_client import CollectorRegistry

        self.config, self.env, self.host = config, env, host
        self.registry: CollectorRegistry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self.log = _logger(Path(config.out) / LOG_FILE)

    @classmethod
    def of(cls, config: ServeConfig) -> Self:
        """Builds environment and policy.

        Raises:
            ValueError: The policy does not fit the environment, or cannot be served.
        """
        check_installed()
        env: Any = config.environment.make().unwrapped
        return cls(config, env, _host_of(config, env))

    async def decide(self, state: Any, chosen: Any = None) -> Answer:
        """The policy's decision; its errors are part of the answer.

        Args:
            state: The environment's state, typed.
            chosen: The front end's own decision in the wire form, for comparison; None: not given.
        """
        answer = self.host.ask(state, chosen)
        self.count("decisions")
        if answer.error:
            self.count("errors")
        return answer

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Adds to a counter of `/metrics`, `serving_gym_NAME_total`.

        Args:
            name: Of the counter, without prefix and suffix.
            number: What is added.
            labels: Labels and their values; the same labels at every call.
        """
        from prometheus_client import Counter

        if name not in self._counters:
            self._counters[name] = Counter(
                f"serving_gym_{name}", name.replace("_", " "), list(labels), registry=self.registry
            )
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(number)

    def close(self) -> None:
        """Closes the log."""
        for handler in list(self.log.handlers):
            self.log.removeHandler(handler)
            handler.close()


def policy_host(config: ServeConfig) -> PolicyHost:
    """Builds the policy and its host for the environment's setting, in this process."""
    return _host_of(config, config.environment.make().unwrapped)


def _host_of(config: ServeConfig, env: Any) -> PolicyHost:
    served = served_environment(config.env["name"], env)
    policy = load_policy(config.policy, config.env["name"])
    check_spaces(policy, env)
    return PolicyHost(policy, served, config.mode, config.share, config.seed)


class _JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = str(record.exc_info[1])
        return json.dumps(line | getattr(record, "fields", {}), default=str)


def _logger(path: Path) -> logging.Logger:
    """A logger that writes to a file, which is begun with the first record."""
    log = logging.Logger(f"serving_gym.serve.{path}", logging.INFO)
    log.addHandler(handler := _FileHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, delay=True))
    handler.setFormatter(_JsonLines())
    return log


class _FileHandler(logging.handlers.RotatingFileHandler):
    """Makes the folder with the file."""

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()
