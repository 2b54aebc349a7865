"""What a listener needs of `PolicyService`, with a policy that is a function."""

from __future__ import annotations

import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

from serving_gym.envs.routing.state import Dispatch
from serving_gym.runners.configuration.schema import BackendConfig


class StandIn:
    """A service whose decisions are those of a function of the state; an exception is its error."""

    def __init__(
        self, env: Any, endpoints: tuple[str, ...], policy: Any, mode: str = "live", **settings: Any
    ) -> None:
        self.env, self.policy, self.mode = env, policy, mode
        self.config = SimpleNamespace(
            backend=BackendConfig(name="vllm" if endpoints else "simulator", endpoints=endpoints, **settings),
            token=None,
            max_connections=50,
            read_s=5.0,
        )
        self.log = logging.getLogger("standin")
        self.counts: Counter[str] = Counter()
        self.states: list[Any] = []

    async def decide(self, state: Any, chosen: Any = None) -> Any:
        self.states.append(state)
        try:
            decision = self.policy(state)
        except Exception as error:  # noqa: BLE001
            return SimpleNamespace(decision=None, error=str(error), applies=False)
        if decision is None or isinstance(decision, int):
            decision = Dispatch(decision)
        return SimpleNamespace(decision=decision, error="", applies=self.mode == "live")

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        self.counts[" ".join([name, *labels.values()])] += number
