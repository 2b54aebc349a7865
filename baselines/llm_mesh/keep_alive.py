"""Which idle instances stay (LLM-Mesh, section 4: "following a keep-alive policy, LLM-Mesh recycles an instance").

The text gives the time after which an idle instance is recycled, 1 s on its testbed, and nothing else. Where instances
stay for longer than a request can wait, idle ones give way to a new instance: their batch size, 0, is the lowest, and
"the lowest one" is preempted first (section 7.1). Which of several idle ones goes is ours.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np


class KeepAlive(StrEnum):
    """Where the time after which an idle instance is recycled comes from."""

    SETTING = "setting"  # what the setting has for all systems
    FIXED = "fixed"  # `keep_alive_s`


class Reclaim(StrEnum):
    """Which idle instances give way to a new one."""

    NONE = "none"  # none before its time: the text taken literally
    LONGEST_IDLE = "longest_idle"
    LEAST_ASKED = (
        "least_asked"  # those whose model is asked for least often, by a count that is forgotten over time
    )


class Late(StrEnum):
    """Which requests are served although their first token cannot come in time."""

    DROP = "drop"  # none (section 8.2: "is dropped")
    COLD_START = "cold_start"  # those of models whose load alone takes longer than the TTFT promise
    SERVE = "serve"  # these, and those that are late already


class AskedFor:
    """How often each model has been asked for, each request half forgotten after a while.

    Args:
        num_models: Models.
        half_life_s: In which a request is half forgotten, seconds.
    """

    def __init__(self, num_models: int, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._counts, self._since_s = np.zeros(num_models), np.zeros(num_models)
        self._newest = -1

    def note(self, request: int, model: int, now_s: float) -> None:
        """A request is offered; one that has been offered before does not count again.

        Args:
            request: Row of the workload; later arrivals have higher ones.
            model: What it asks for.
            now_s: Time.
        """
        if request > self._newest:
            self._newest = request
            self._counts[model] = 1.0 + self.count(model, now_s)
            self._since_s[model] = now_s

    def count(self, model: int, now_s: float) -> float:
        """Requests for a model, as far as they are not forgotten."""
        return float(self._counts[model] * 0.5 ** ((now_s - self._since_s[model]) / self._half_life_s))
