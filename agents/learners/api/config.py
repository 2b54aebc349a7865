"""Settings of approximate policy iteration; does not import torch."""

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
_OF_ENVS = {  # environments of settings that do not apply everywhere
    **dict.fromkeys(("stays", "tail", "largest_fleet"), ("routing",)),
    **dict.fromkeys(("even", "memory_s", "dwell_s", "linger_s", "surges", "stride"), ("dp_tp",)),
    **dict.fromkeys(("commit", "continuation", "worst", "cost_power", "committee"), _NOT_PLACING),
}


@dataclass(frozen=True, kw_only=True)
class PolicyIterationConfig(AgentConfig):
    """Settings of agents that improve a policy by rollouts from sampled states.

    Attributes:
        iterations: Policy improvements; each gets an equal share of the budget.
        sample_every: Decisions between two sampled states, on average.
        exploration: Probability of a random possible action while data is gathered.
        kept_iterations: Iterations whose data the network is trained on.
        hidden: Width of the network.
        epochs: Passes over the data after each iteration.
        batch_size: States a step of the optimizer.
        warm: Whether each network starts from the weights of the last one (in routing, the first network from those of
            the start checkpoint if it has the same width); otherwise each is trained from scratch. Not possible if the
            start policy is among the actions, since its margin must be estimated on states unseen by the network.
        entropy_weights: Weights of the policy's entropy, in the first and in the last epoch.
        averaged: Share of the last steps over which the network's weights are averaged; 0: weights of the last step.
        trust: Bonus on the advantage of the present policy's action, in standard deviations of the advantages: the next
            policy changes a decision only for a larger gain. Returns of single rollouts are noisy, and a change that
            pays for one decision may not pay if all decisions change at once.
        worst: Lower clip of relative advantages: an action that multiplies the cost is bad enough. Not in routing and
            sharing.
        least_cost: Added to a state's cost before advantages are divided by it (by its root in routing), in units of
            reward.
        cost_power: Power of a state's cost that advantages are divided by: with 1 quiet hours weigh as much as busy
            ones, with 0 in proportion to their cost, with 0.5 by its root, like noise. Not in routing and sharing.
        processes: Processes that sample states side by side, at most one a processor core.
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
    processes: int = 1

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
            "processes",
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
            and its `path`; None: no action, or an untuned score of requests. Its action is always among the actions
            compared. Except in routing and sharing, where it must be a score that decides inside the kernel or from
            the observation only, the learned policy can also choose its action (`agents.learners.api.start`), and
            follows it in states unlike those of the training.
        continuation: Policy of rollouts after their first action: "present" (the present policy) or "start" (the start
            policy in all iterations: improves only that policy, but is cheaper if the network decides slowly). Not in
            routing and sharing.
        horizon: Rollout length, decision intervals; in routing, arrivals.
        stays: Rollout length in mean sojourn times of a request, if shorter: by Little's law as many requests arrive
            during one sojourn time as are in the system. None: the horizon. routing only.
        commit: Decision intervals for which a rollout repeats its action before it follows the present policy. With a
            policy that corrects every deviation at once all actions would look equal. Not in routing and sharing.
        stride: Decision intervals between two decisions inside a rollout; more makes rollouts cheaper and coarser.
            dp_tp only.
        candidates: Most actions compared at a state, including staying and the present policy's action.
        even: Whether only layouts of equal engines are compared and chosen, plus the start policy's action: fewer
            actions leave time for more states, and uneven layouts seldom pay with one router for all engines. dp_tp
            only.
        memory_s: Time constants of the policy's memory of the traffic (`agents.environments.dp_tp.memory`), seconds;
            empty: it uses only the observation. dp_tp only.
        dwell_s: Time after a split during which no engines are merged, seconds: the end of a backlog does not mean the
            end of the load. dp_tp only.
        linger_s: Mean duration of random actions during data collection, seconds (exponentially distributed): a policy
            that always has enough engines when a burst comes does not learn what to do otherwise. dp_tp only.
        surges: Whether all surge states are sampled, and rollouts decide as soon as a surge begins instead of repeating
            their action or waiting for the next stride. In a surge the requests in the system have doubled within three
            decisions, with eight more; such states are few, and seconds matter. dp_tp only.
        committee: Number of last networks that form an ensemble by the mean of their scores, also in rollouts: networks
            of later improvements are about equally good, and their errors differ. With a start policy only the last
            network decides. Not in routing and sharing.
        tail: Weight of minus the sum over requests of (TTFT / SLO) squared; its standardised advantages are added to
            the standardised advantages of the objective. Keeps a router from trading late first tokens for a better
            mean. routing only.
        largest_fleet: Largest factor on fleet size and load; half of the training states imitate larger fleets
            (`agents.environments.routing.larger`); 1: none. routing only.
        guard: Settings of a guard on late first tokens (`agents.environments.routing.guard.GuardConfig`), which masks
            actions of every network, in training from the second iteration; None: no guard. The observation must have
            its default scales. routing only.
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
        """Most networks of the ensemble."""
        return self.committee if self.start is None else 1


def check_settings_of(config: APIConfig, env: str) -> None:
    """Checks that all settings apply in an environment.

    Args:
        config: All of them.
        env: Name of the environment.

    Raises:
        ValueError: A setting of another environment is not at its default.
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
    """A setting as written on the command line."""
    return "null" if value is None else list(value) if isinstance(value, tuple) else value
