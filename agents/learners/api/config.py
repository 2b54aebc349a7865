"""Settings of approximate policy iteration; free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from serving_gym.agents.config import AgentConfig
from serving_gym.agents.environments.routing.guard import read_guard
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

CONTINUATIONS = ("present", "start")
_NOT_PLACING = ("autoscaling", "deployment", "dp_tp")
_OF_ENVS = {  # where a setting means something, if not everywhere
    **dict.fromkeys(("stays", "tail", "largest_fleet"), ("routing",)),
    **dict.fromkeys(("even", "memory_s", "dwell_s", "linger_s", "surges", "stride"), ("dp_tp",)),
    **dict.fromkeys(("commit", "continuation", "worst", "cost_power", "committee"), _NOT_PLACING),
}


@dataclass(frozen=True, kw_only=True)
class PolicyIterationConfig(AgentConfig):
    """What agents that improve a policy by rollouts from sampled states have in common.

    Attributes:
        iterations: Policy improvements; each gets an equal share of the budget.
        sample_every: Decisions between two sampled states, on average.
        exploration: Probability of a random possible action while data is gathered.
        kept_iterations: Iterations whose data the network is trained on.
        hidden: Width of the network.
        epochs: Passes over the data after each iteration.
        batch_size: States a step of the optimizer.
        warm: Whether each network begins with the weights of the last one, in routing the first with those of the
            checkpoint that is started from if it is as wide; otherwise each is trained anew. Not where the policy that
            was started from is among the actions: its margin is found on states that the last network has seen.
        entropy_weights: Of the policy's entropy, in the first and in the last epoch.
        averaged: Share of the steps, the last ones, over which the network's weights are averaged; 0: they are those of
            the last step.
        trust: Added to the advantage of what the present policy would do, in spreads of the advantages: the next policy
            departs from it only where that promises more than so much. Returns of single rollouts are mostly chance,
            and what pays for one decision may not if all decisions change at once.
        worst: Relative advantages are not taken to be less: an action that multiplies the cost is bad enough. Not in
            routing and sharing.
        least_cost: Added to a state's cost before advantages are taken relative to it (to its root in routing), in
            units of reward.
        cost_power: Power of a state's cost that advantages are relative to: with 1 quiet hours count as much as busy
            ones, with 0 by how little they cost, with 0.5 by its root, as chance does. Not in routing and sharing.
    """

    iterations: int = 3
    sample_every: int = 4
    exploration: float = 0.1
    kept_iterations: int = 3
    hidden: int = 64
    epochs: int = 150
    batch_size: int = 256
    warm: bool = False
    entropy_weights: tuple[float, float] = (0.3, 0.003)
    averaged: float = 0.0
    trust: float = 0.0
    worst: float = -3.0
    least_cost: float = 1.0
    cost_power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(
            self,
            1,
            "iterations",
            "sample_every",
            "kept_iterations",
            "hidden",
            "epochs",
            "batch_size",
            prefix="agent.",
        )
        check_within(self, "[0, 1]", "exploration", "averaged", prefix="agent.")
        check_not_negative(self, "trust", "least_cost", prefix="agent.", finite=True)
        if not self.worst < 0:
            raise ValueError(f"agent.worst must be negative, got {self.worst}")
        check_within(self, "[0, 1]", "cost_power", prefix="agent.")
        if len(self.entropy_weights) != 2 or not all(0.0 < each < math.inf for each in self.entropy_weights):
            raise ValueError(
                f"agent.entropy_weights must be two positive numbers, first and last, got {list(self.entropy_weights)}"
            )


@dataclass(frozen=True, kw_only=True)
class APIConfig(PolicyIterationConfig):
    """Approximate policy iteration by counterfactual rollouts.

    Attributes:
        start: Policy that the first rollouts follow, name and parameters as in `configs/policy`, or `name: checkpoint`
            and its `path`; None: all stays as it is, or requests follow an untuned score. What it would do is always
            among the actions compared; but for routing and sharing, where it must be a score that decides inside the
            kernel or by the observation alone, it is also among the learned policy's
            (`agents.learners.api.start`), and all that this does in states that are unlike those of the training.
        continuation: What rollouts follow after their action: "present" (the present policy) or "start" (the policy
            that was started from, in all iterations: an improvement of that one alone, at a fraction of the cost where
            the network's decisions take longer). Not in routing and sharing.
        horizon: Decision intervals that a rollout looks ahead; in routing, arrivals.
        stays: A rollout ends earlier, after as many stays of a request as this: by Little's law as many requests arrive
            while one stays as are in the system. None: after the horizon. routing only.
        commit: Decision intervals for which a rollout keeps to its action before it follows the present policy. A
            policy that corrects every deviation at once would make all actions look alike. Not in routing and sharing.
        stride: Decision intervals between two decisions inside a rollout; more makes rollouts cheaper and coarser.
            dp_tp only.
        candidates: Most actions compared at a state; staying and the present policy's choice are always among them.
        even: Whether only layouts of equal engines are compared and chosen, and what the policy that was started from
            would do: with fewer actions more states can be tried, and layouts whose engines differ seldom pay where one
            router serves them all. dp_tp only.
        memory_s: Time constants over which the policy remembers what the traffic has been
            (`agents.environments.dp_tp.memory`), seconds; none: it goes by what the environment shows. dp_tp only.
        dwell_s: How long after a split no engines are merged, seconds: a backlog that is gone does not say that the
            load is. dp_tp only.
        linger_s: For how long what chance has begun with while data is gathered is kept to, seconds, on average
            (exponentially distributed): a policy that never has too few engines when a burst comes does not learn what
            to do where it has. dp_tp only.
        surges: Whether all states are sampled in which the requests in the system have doubled within three decisions,
            with eight more, and rollouts decide as soon as that happens, neither keeping to their action nor waiting
            for the next stride. What is right then is decided within seconds, and such states are few. dp_tp only.
        committee: The last so many networks decide together, by the mean of their scores (who is surer weighs more), in
            rollouts too: networks of later improvements are each about as good as the last, and err elsewhere. With a
            policy to start from the last decides alone. Not in routing and sharing.
        tail: What minus the sum over requests of (TTFT / SLO) squared weighs beside the objective: its advantages, in
            their spreads, are added to those of the objective in theirs. For a router that is not to buy quicker
            answers with late first tokens. routing only.
        largest_fleet: Networks are trained as if half of the states were of larger fleets, up to so many times, that
            are asked for as much more (`agents.environments.routing.larger`); 1: as they are. routing only.
        guard: Settings of a guard on late first tokens (`agents.environments.routing.guard.GuardConfig`), in
            front of every
            network: afterwards, and in training from the second iteration on; None: it may choose any place that can
            take the request. The observation must have its usual scales. routing only.
    """

    name: str = "api"
    total_steps: int = 4_000_000
    learning_rate: float = 2e-3
    start: Any = None
    continuation: str = "present"
    horizon: int = 20
    stays: float | None = None
    commit: int = 20
    stride: int = 2
    candidates: int = 8
    even: bool = False
    memory_s: tuple[float, ...] = ()
    dwell_s: float = 0.0
    linger_s: float = 0.0
    surges: bool = False
    committee: int = 1
    tail: float = 0.0
    largest_fleet: float = 1.0
    guard: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "horizon", "commit", "stride", "committee", prefix="agent.")
        check_at_least(self, 2, "candidates", prefix="agent.")
        if not all(0.0 < each < math.inf for each in self.memory_s):
            raise ValueError(f"agent.memory_s must be positive numbers of seconds, got {list(self.memory_s)}")
        check_not_negative(self, "dwell_s", "linger_s", prefix="agent.", finite=True)
        if self.guard is not None:
            object.__setattr__(self, "guard", read_guard(self.guard))
        check_choice("agent.continuation", self.continuation, CONTINUATIONS)
        if self.continuation == "start" and self.start is None:
            raise ValueError("agent.continuation=start needs a policy to start from: set agent.start")
        check_positive(self, "stays", prefix="agent.")
        check_not_negative(self, "tail", prefix="agent.", finite=True)
        check_at_least(self, 1, "largest_fleet", prefix="agent.", finite=True)

    @property
    def members(self) -> int:
        """Most networks that decide together."""
        return self.committee if self.start is None else 1


def check_settings_of(config: APIConfig, env: str) -> None:
    """Refuses settings that mean nothing in an environment.

    Args:
        config: All of them.
        env: Name of the environment.

    Raises:
        ValueError: One is for others and is not what it is by default.
    """
    defaults = {item.name: item.default for item in fields(APIConfig)}
    for name, envs in _OF_ENVS.items():
        value = getattr(config, name)
        if env not in envs and value != defaults[name]:
            raise ValueError(
                f"agent.{name} is for env={'|'.join(envs)} alone, got {_plainly(value)} in env={env}; leave it "
                f"{_plainly(defaults[name])}"
            )


def _plainly(value: Any) -> Any:
    """A setting as one would type it."""
    return "null" if value is None else list(value) if isinstance(value, tuple) else value
