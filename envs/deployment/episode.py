"""One deployment episode: simulator, candidates, encoder and reward. The scalar and the vector environment use it."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.episode import SteppedEpisode
from serving_gym.envs.deployment.action import action_mask, assign_forecast, decode_action
from serving_gym.envs.deployment.candidates import (
    Candidate,
    best_uniform,
    choices_of,
    find_candidates,
    plan_of,
)
from serving_gym.envs.deployment.config import DeploymentConfig
from serving_gym.envs.deployment.observation import Encoder, Observation, SpanFigures
from serving_gym.envs.deployment.setting import Typing, make_setting
from serving_gym.envs.deployment.state import Deploy, DeploymentState, SwitchUnderway
from serving_gym.envs.deployment.switch_cost import SwitchCost, gpus_changed, switch_cost
from serving_gym.envs.deployment.workload_types import count_by_span
from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.reward import Interval, Outcome
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.machines.cluster import Deployment
from serving_gym.envs.machines.placement import place
from serving_gym.envs.simulator.deployment.plane import Phase
from serving_gym.envs.simulator.deployment.simulator import DeploymentSimulator
from serving_gym.envs.simulator.kernel.state import FINISHED, PS_PER_S
from serving_gym.envs.simulator.metering import busy_s
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.workload.schema import Workload

FloatArray = NDArray[np.float64]


class DeploymentEpisode(SteppedEpisode[DeploymentConfig]):
    """Runs episodes of one configuration.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    simulator: DeploymentSimulator

    def __init__(self, config: DeploymentConfig) -> None:
        super().__init__(config)
        self.simulator = DeploymentSimulator(config.cluster, self.slos, config.randomise.levels)
        self._check_front_end(len(self.simulator.tables.fronts) > 0)
        factory = self.simulator.factory
        self.typing = Typing(config, self.source)
        self.setting = make_setting(config, self.typing, factory.kinds)
        self.encoder = Encoder(
            self.setting,
            config.scales,
            config.span_s,
            config.history,
            config.num_candidates,
            factory.max_replicas,
            config.cluster.max_pp,
            {kind: factory.capacity_tokens(kind) for kind in factory.kinds},
        )
        self._span_ps = to_ps(config.span_s)
        self._state: DeploymentState | None = None
        self._candidates: list[Candidate] | None = None

    # -- an episode ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed, with the best uniform deployment for the mean of the past.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        factors = self.config.randomise.draw(seed, 1)
        workload, types = self._begin(seed, split, factors.prediction)
        self.simulator.reset(workload, types, self.typing.num_types, factors)
        self._look()
        receipt = self._deploy(self._first())
        assert receipt.accepted, receipt.reason
        self._look()

    def _begin(
        self, seed: int, split: str | None, error_factor: float = 1.0
    ) -> tuple[Workload, NDArray[np.int64]]:
        """Draws an episode, and opens its books; its requests, and the workload type of each."""
        workload = self._sample(seed, split)
        types = self.typing.classify(workload, seed, error_factor)
        spans = -(-self.deadline_ps // self._span_ps)
        self.counts = count_by_span(
            workload.arrival_s,
            types,
            self.typing.num_types,
            self.config.span_s,
            (spans + 0.5) * self.config.span_s,
        )
        self._switch_ps = self._log_read = 0
        self._last_p99_s = self._p99_charged_s = 0.0
        self._latencies_s = np.zeros(0)
        self._totals = np.zeros((len(self.classes), len(TOTALS)))
        self._busy_s = np.zeros(self._num_slots)
        self.span = SpanFigures(0.0, np.zeros(self._totals.shape), 0.0, self._busy_s, 0.0)
        return workload, types

    def _first(self) -> Deploy:
        """What an episode begins with: the best uniform deployment for the mean of the past."""
        plan = best_uniform(self.setting.evaluator(self._mean_past()))
        deployment = place(self.setting.cluster, plan.kinds)
        return Deploy(deployment, self.shares_of(deployment, False))

    @property
    def _num_slots(self) -> int:
        """Engine slots, in which replicas come and go."""
        return self.simulator.factory.num_engines

    def _mean_past(self) -> FloatArray:
        return np.asarray(self.setting.past.mean(axis=0), np.float64)

    @property
    def forecast(self) -> FloatArray:
        """(J,), requests of each type that the next span may bring: the mean of the last ones."""
        seen = self.counts[: self._num_seen]
        if not len(seen):
            return self._mean_past()
        return np.asarray(seen[-self.config.forecast_spans :].mean(axis=0), np.float64)

    @property
    def _num_seen(self) -> int:
        """Spans that are over."""
        return self.simulator.now_ps // self._span_ps

    @property
    def deployment(self) -> Deployment:
        """Replicas in force, or those to be when the switch under way is done."""
        return self.simulator.deployment

    @property
    def slots(self) -> NDArray[np.int64]:
        """(K,), slot of each replica of `deployment`."""
        return self.simulator.slots

    @property
    def underway(self) -> SwitchUnderway | None:
        """The switch under way."""
        switch = self.simulator.plane.switch
        if switch is None:
            return None
        return SwitchUnderway(
            switch.started_ps / PS_PER_S, switch.due_ps / PS_PER_S, switch.phase == Phase.DRAIN
        )

    @property
    def candidates(self) -> list[Candidate]:
        """Candidates in the order of actions; built on first access."""
        if self._candidates is None:
            self._candidates = self._find_candidates()
        return self._candidates

    def _find_candidates(self) -> list[Candidate]:
        evaluator, divisions = self.setting.evaluator(self.forecast), self.setting.divisions(self.forecast)
        present = self.deployment.kinds
        if self.underway is not None:
            return choices_of(plan_of(evaluator, present, divisions), stay=True)
        return find_candidates(evaluator, present, self.config.num_candidates, divisions)

    def placed(self, candidate: Candidate) -> Deployment:
        """Where a candidate's replicas would stand."""
        now = self.deployment
        return now if candidate.stay else place(self.setting.cluster, candidate.plan.kinds, now)

    def mask(self) -> NDArray[np.bool_]:
        """(num_candidates,), which candidates there are; while a switch is under way only to stay."""
        return action_mask(self.config.num_candidates, self.candidates)

    def step(self, action: int | np.integer | Deploy | None, interval_s: float | None = None) -> Outcome:
        """Carries out a decision and lets time pass to the next one.

        The 99th percentile of each span is charged in the step in which the span ends, however often one decides.

        Args:
            action: A candidate, a command, or None (leave all as it is, the assignment too).
            interval_s: Time to the next decision; None: to the end of the span.
        """
        simulator = self.simulator
        switched, refused = self._apply(action)
        before_ps = simulator.now_ps
        self._pass(self._until_ps(interval_s))
        now_ps = simulator.now_ps
        terminated = simulator.idle
        truncated = not terminated and now_ps >= self.deadline_ps
        self.done = terminated or truncated
        self._measure((now_ps - before_ps) / PS_PER_S)
        interval = self.meter.measure(
            simulator.world.stats,
            simulator.latency_cost,
            switched,
            self.unfinished() if truncated else None,
        )
        self._look()
        terms = interval.terms(self.classes) | self._own_terms()
        return Outcome(self._reward(interval), terms, self.span.dt_s, terminated, truncated, refused)

    def _until_ps(self, interval_s: float | None) -> int:
        """When the next decision comes."""
        if interval_s is None:
            return min((self._num_seen + 1) * self._span_ps, self.deadline_ps)
        return min(self.simulator.now_ps + max(to_ps(interval_s), 1), self.deadline_ps)

    def _pass(self, until_ps: int) -> None:
        """Lets time pass to a decision or the end of the episode, span by span."""
        simulator, self._p99_charged_s = self.simulator, 0.0
        while True:
            end_ps = (self._num_seen + 1) * self._span_ps
            stopped = simulator.advance_ps(min(end_ps, until_ps))
            over = simulator.idle or simulator.now_ps >= self.deadline_ps
            self._read_log()
            if over or simulator.now_ps >= end_ps:
                self._last_p99_s = self._take_p99_s()
                self._p99_charged_s += self._last_p99_s
            if over or stopped or simulator.now_ps >= until_ps:
                return

    def _own_terms(self) -> dict[str, float]:
        finished = self.span.change[:, TOTALS.index("finished")].sum()
        return {"p99": -self._p99_charged_s, "throughput": float(finished)}

    @property
    def term_weights(self) -> dict[str, float]:
        """As of every environment, and those of the tail latency and the throughput."""
        return super().term_weights | {"p99": self.config.p99, "throughput": self.config.throughput}

    def _reward(self, interval: Interval) -> float:
        own, config = self._own_terms(), self.config
        extra = config.p99 * own["p99"] + config.throughput * own["throughput"]
        return interval.reward(config.objective) + config.objective.scale * extra

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _apply(self, action: int | np.integer | Deploy | None) -> tuple[int, str]:
        """GPUs in replicas that come, and why the command was refused."""
        if action is None:
            return 0, ""
        command, reason = self._command(action)
        if command is None:
            self.num_refused += 1
            return 0, reason
        free, before = self.simulator.untouched, self.simulator.deployment
        receipt = self._deploy(command)
        if not receipt.accepted:
            self.num_refused += 1
            return 0, receipt.reason
        changed = round(gpus_changed(before, self.simulator.deployment) * self.config.cluster.num_gpus)
        if free or not changed:
            return 0, ""
        self._switch_ps = self.simulator.now_ps
        return changed, ""

    def _command(self, action: int | np.integer | Deploy) -> tuple[Deploy | None, str]:
        """What an action says; None, and why, where there is no such candidate."""
        if isinstance(action, Deploy):
            return action, ""
        candidate, reason = decode_action(int(action), self.candidates)
        if candidate is None:
            return None, reason
        deployment = self.placed(candidate)
        return Deploy(deployment, self.shares_of(deployment, candidate.apart)), ""

    def _deploy(self, command: Deploy) -> Receipt:
        shares = self.shares_of(command.deployment, True) if command.shares is None else command.shares
        return self.simulator.deploy(command.deployment, shares, command.switch)

    def shares_of(self, deployment: Deployment, apart: bool) -> FloatArray:
        """(K, J), an assignment of the forecast, as `envs.deployment.action.assign_forecast` has it."""
        return assign_forecast(self.setting, deployment, self.forecast, apart)

    # -- the observation -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._state = self._candidates = None

    @property
    def state(self) -> DeploymentState:
        """State that a policy may read at this decision; built on first access."""
        if self._state is None:
            self._state = self._observe()
        return self._state

    def _observe(self) -> DeploymentState:
        simulator, slots = self.simulator, self.simulator.slots
        world = simulator.world
        engines = simulator.shown()[slots]
        return DeploymentState(
            now_s=simulator.now_s,
            deployment=simulator.deployment,
            engines=engines,
            shares=world.shares[:, slots].T.copy(),
            switch=self.underway,
            history=self.counts[: self._num_seen].copy(),
            forecast=self.forecast,
            num_pooled=int(world.cluster["num_pooled"][0]),
            pooled_tokens=int(world.cluster["pooled_tokens"][0]),
            totals=world.stats[:, : len(TOTALS)].copy(),
            coming=self.counts[self._num_seen :].copy(),
        )

    def observe(self) -> Observation:
        """The observation of the present state."""
        costs = [self.cost(candidate) for candidate in self.candidates]
        return self.encoder.encode(self.state, self.candidates, costs, self.span, self.slots)

    def cost(self, candidate: Candidate) -> SwitchCost:
        """What a switch to a candidate would cost now."""
        return switch_cost(self.config.cluster, self.deployment, self.placed(candidate), self.state.engines)

    def _measure(self, dt_s: float) -> None:
        """Works out what the time since the last decision brought."""
        simulator = self.simulator
        world = simulator.world
        busy, _ = busy_s(world)
        totals = world.stats[:, : len(TOTALS)].copy()
        self.span = SpanFigures(
            dt_s,
            totals - self._totals,
            self._last_p99_s,
            np.maximum(busy - self._busy_s, 0.0),
            (simulator.now_ps - self._switch_ps) / PS_PER_S,
        )
        self._totals, self._busy_s = totals, busy

    def _read_log(self) -> None:
        """Notes the latency of requests that have ended since the last call."""
        world = self.simulator.world
        length = int(world.cluster["log_length"][0])
        entries = world.log[self._log_read : length]
        self._log_read = length
        ended = entries[entries["outcome"] == FINISHED]
        self._latencies_s = np.concatenate(
            [self._latencies_s, (ended["finish_ps"] - ended["arrival_ps"]) / PS_PER_S]
        )

    def _take_p99_s(self) -> float:
        """99th percentile of the latencies noted since the last call, seconds; 0 without any."""
        latencies_s, self._latencies_s = self._latencies_s, np.zeros(0)
        return float(np.percentile(latencies_s, 99)) if len(latencies_s) else 0.0

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy knows before an episode."""
        return self._make_policy_spec(self.config.span_s, setting=self.setting)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the cluster has been kept."""
        return self.simulator.gpu_seconds

    def fork(self) -> Self:
        """A copy of the episode that continues to the same numbers."""
        copy = self._copy()
        copy._log_read = 0
        return copy
