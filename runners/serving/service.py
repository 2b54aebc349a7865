"""The served policy, which all listeners of the process share: decisions, counters, log, and the change of policies."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from serving_gym.runners.configuration.policies import CHECKPOINT, check_spaces, load_policy, policy_config
from serving_gym.runners.live.attach import check_installed
from serving_gym.runners.serving.config import NO_FALLBACK, ServeConfig
from serving_gym.runners.serving.decision_log import DecisionLog
from serving_gym.runners.serving.drift import training_ranges
from serving_gym.runners.serving.event_log import event_log
from serving_gym.runners.serving.host import Answer, Judgement, PolicyHost, agrees
from serving_gym.runners.serving.meters import Meters
from serving_gym.runners.serving.served import SERVED, served_environment
from serving_gym.runners.serving.worker import PolicyWorker

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_OLD_WAITS_S = 30.0  # longest time that questions to a policy that was replaced may take


class LeaveAsItIs:
    """The fallback of environments in which nothing needs to happen: leave all as it is."""

    name = "leave_as_it_is"
    clairvoyant = False

    def reset(self, spec: Any, seed: int) -> None:
        """Forgets nothing."""

    def act(self, observation: Any, state: Any) -> None:
        """Changes nothing."""


class PolicyService:
    """A policy to be served.

    Attributes:
        config: The configuration.
        env: The environment of the setting, simulated; `env.config` and `env.policy_spec` describe it.
        host: The policy, in this process.
        fallback: The policy that answers where this one is late or fails; None: none.
        worker: The policy in a process of its own; None: it is asked in this process.
        registry: What `/metrics` shows.
        log: Writes `serve.jsonl` in `config.out`: one object a line, `at_s` (Unix time), `level`, `event`, and the
            fields given as `extra={"fields": {...}}`.

    Args:
        config: The configuration.
        env: The environment.
        host: The policy.
    """

    def __init__(self, config: ServeConfig, env: Any, host: PolicyHost) -> None:
        self.config, self.env, self.host = config, env, host
        served = host.served
        self.fallback = _fallback_of(config, env)
        self.deadline_s = served.deadline_s if config.deadline_ms is None else config.deadline_ms / 1e3
        self.body_bytes = served.body_bytes if config.max_body_kb is None else 1024 * config.max_body_kb
        self.worker: PolicyWorker | None = None
        self.meters = Meters(config.env["name"], host.policy.name, config.mode)
        self.log = event_log(Path(config.out))
        self.decisions = (
            DecisionLog(Path(config.out), round(1e6 * config.log_mb)) if config.log_decisions else None
        )
        self._random = random.Random(config.seed)
        self._changing = asyncio.Lock()
        self._last_state: Any = None

    @classmethod
    def of(cls, config: ServeConfig) -> Self:
        """Builds environment and policy.

        Raises:
            ValueError: The policy does not fit the environment, or cannot be served.
        """
        check_installed()
        host = policy_host(config)
        return cls(config, host.served.env, host)

    @property
    def registry(self) -> CollectorRegistry:
        """What `/metrics` shows."""
        return self.meters.registry

    async def start(self) -> None:
        """Rehearses a decision, and starts the policy's process if it is to have one.

        Raises:
            ValueError: The policy fails at the first state of an episode, or its process does not start.
        """
        self._rehearse(self.host)
        if self.config.isolate:
            self.worker = await self._started(self.config)
        gc.collect()
        gc.freeze()  # a full collection of what is here to stay takes tens of milliseconds
        self.meters.up(True)
        self.log.info("started", extra={"fields": {"policy": self.host.policy.name}})

    async def stop(self) -> None:
        """Ends the policy's process."""
        if self.worker is not None:
            await self.worker.close()
            self.worker = None
        self.meters.up(False)
        self.log.info("stopped", extra={"fields": self.host.status()})

    async def decide(self, state: Any, chosen: Any = None) -> Answer:
        """A decision within the deadline: the policy's, or the fallback's where that is late or fails.

        Args:
            state: The environment's state, typed.
            chosen: The front end's own decision in the wire form, for comparison; None: not given.
        """
        begun_s = time.perf_counter()
        said, why = await self._ask(state)
        own, by = said, "policy"
        if said.error:
            own, by = self._of_fallback(state), "fallback"
            if own.error:
                by = "none"
        applies = by != "none" and self.host.applies(state)
        us = 1e6 * (time.perf_counter() - begun_s)
        answer = Answer(own.action, applies, us, said.error, own.decision, by)
        self.host.tally.add(answer, chosen)
        self.meters.answered(answer, why)
        asyncio.get_running_loop().call_soon(self._record, state, said, answer, chosen)
        return answer

    async def _ask(self, state: Any) -> tuple[Judgement, str]:
        """What the policy says in time, and the kind of what is wrong with it, if anything."""
        if self.worker is None:
            said = self.host.judge(state)
            return said, "error" if said.error else ""
        if not self.worker.loaded:
            return Judgement(None, None, 0.0, "the policy is being started again"), "restart"
        try:
            question = self.worker.ask(state)
        except OverflowError as error:
            return Judgement(None, None, 0.0, str(error)), "overload"
        try:
            async with asyncio.timeout(self.deadline_s):
                said = await question
        except TimeoutError:
            late = f"no decision within {1e3 * self.deadline_s:g} ms"
            return Judgement(None, None, 1e6 * self.deadline_s, late), "late"
        return said, "error" if said.error else ""

    def _of_fallback(self, state: Any) -> Judgement:
        if self.fallback is None:
            return Judgement(None, None, 0.0, "there is no fallback")
        return self.fallback.judge(state)

    def _record(self, state: Any, said: Judgement, answer: Answer, chosen: Any) -> None:
        """Compares with the fallback and writes the log, after the answer has been sent."""
        self._last_state = state
        other: Judgement | None = None
        if answer.by == "fallback":
            other = Judgement(answer.decision, answer.action, 0.0)
        elif self.fallback is not None and self._random.random() < self.config.compare:
            other = self.fallback.judge(state)
            if not other.error and answer.by == "policy":
                agreed = agrees(other.action, answer.action)
                self.host.tally.counts["fallback_compared"] += 1
                self.host.tally.counts["fallback_disagreed"] += not agreed
                self.meters.compared(agreed)
        self.meters.seen(said.outside, self.host.ranges)
        if self.decisions is not None:
            self._write(state, said, answer, chosen, other)

    def _write(
        self, state: Any, said: Judgement, answer: Answer, chosen: Any, other: Judgement | None
    ) -> None:
        assert self.decisions is not None
        taken = answer.action if answer.applies else chosen
        line = {
            "env": self.config.env["name"],
            "policy": self.host.policy.name,
            "state": self.host.served.wire.write_state(state),
            "action": said.action,
            "applied": answer.applies,
            "by": answer.by,
            "chosen": chosen,
            "taken": taken,
            "fallback": None if other is None or other.error else other.action,
            "propensity": said.propensity,
            "reward": None,
            "us": round(answer.us, 1),
            "error": answer.error,
        }
        trouble = self.decisions.write(line)
        if trouble:
            self.count("log_failures")
            self.log.error(trouble)

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Adds to a counter of `/metrics`, `serving_gym_NAME_total`.

        Args:
            name: Of the counter, without prefix and suffix.
            number: What is added.
            labels: Labels and their values; the same labels at every call.
        """
        self.meters.count(name, number, **labels)

    def status(self) -> dict[str, Any]:
        """Counts, times, and what is served."""
        return {
            "env": self.config.env["name"],
            **self.host.status(),
            "fallback": None if self.fallback is None else self.fallback.policy.name,
            "deadline_ms": 1e3 * self.deadline_s,
            "restarts": 0 if self.worker is None else self.worker.restarts,
            "ready": self.ready,
        }

    @property
    def ready(self) -> bool:
        """Whether the policy itself answers, not only the fallback."""
        return self.worker is None or self.worker.loaded

    async def reset(self, seed: int) -> None:
        """Begins anew: policy, observations and counters.

        Raises:
            ValueError: The policy cannot be reset.
        """
        self.host.reset(seed)
        if self.fallback is not None:
            self.fallback.reset(seed)
        if self.worker is not None:
            said = await asyncio.wait_for(self.worker.reset(seed), self.config.hang_s)
            if said.error:
                raise ValueError(said.error)

    # -- the change of policies ----------------------------------------------------------------------------------------

    async def change(self, policy: str | None = None) -> str:
        """Loads a policy, rehearses a decision, and has it answer from then on; until then the old one does.

        Args:
            policy: Name of a policy or folder of a checkpoint; None: the present one is read anew.

        Returns:
            Its name.

        Raises:
            ValueError: There is none, it does not fit, or it fails at the last state; the old one goes on.
        """
        async with self._changing:
            config = (
                self.config if policy is None else replace(self.config, policy=_named(policy, self.config))
            )
            host = await asyncio.to_thread(policy_host, config)
            await asyncio.to_thread(self._rehearse, host)
            worker = await self._started(config) if self.worker is not None else None
            old = self.worker
            host.tally = self.host.tally
            self.config, self.host, self.worker = config, host, worker
            self.meters.policy_is(host.policy.name)
            self.count("policy_changes")
            self.log.info("policy changed", extra={"fields": {"policy": host.policy.name}})
            if old is not None:
                await old.drain(_OLD_WAITS_S)
            return str(host.policy.name)

    def _rehearse(self, host: PolicyHost) -> None:
        """Asks for a decision about the last state, or the first of an episode.

        Raises:
            ValueError: The policy fails.
        """
        state = host.served.first_state() if self._last_state is None else self._last_state
        said = host.judge(state)
        host.served.reset()
        host.policy.reset(host.spec, self.config.seed)
        if said.error:
            raise ValueError(f"policy {host.policy.name!r} cannot be served: {said.error.partition(': ')[2]}")

    async def _started(self, config: ServeConfig) -> PolicyWorker:
        worker = PolicyWorker(
            functools.partial(rehearsed_host, config), max(config.hang_s, 2 * self.deadline_s)
        )
        worker.on_restart = self._restarted
        await worker.start()
        return worker

    def _restarted(self, reason: str) -> None:
        self.count("policy_restarts")
        self.log.error("policy started again", extra={"fields": {"reason": reason}})

    def close(self) -> None:
        """Closes the logs."""
        if self.decisions is not None:
            self.decisions.close()
        for handler in list(self.log.handlers):
            self.log.removeHandler(handler)
            handler.close()


def policy_host(config: ServeConfig) -> PolicyHost:
    """Builds the policy and its host for the environment's setting, in this process.

    Raises:
        ValueError: The policy does not fit the environment, or looks at the future.
    """
    policy = load_policy(config.policy, config.env["name"])
    _check_known(policy)
    env: Any = config.environment.make().unwrapped
    check_spaces(policy, env)
    served = served_environment(config.env["name"], env, config.max_rows)
    ranges = training_ranges(config.policy)
    return PolicyHost(policy, served, config.mode, config.share, config.seed, ranges)


def rehearsed_host(config: ServeConfig) -> PolicyHost:
    """A host that has decided once, so that nothing is compiled while a caller waits."""
    host = policy_host(config)
    host.judge(host.served.first_state())
    host.reset(config.seed)
    return host


def _check_known(policy: Any) -> None:
    if getattr(policy, "clairvoyant", False):
        raise ValueError(f"policy {policy.name!r} looks at the future, which a caller cannot tell it")


def _fallback_of(config: ServeConfig, env: Any) -> PolicyHost | None:
    if config.fallback == NO_FALLBACK:
        return None
    name = config.env["name"]
    wanted = config.fallback or SERVED[name].fallback
    policy: Any = load_policy(wanted, name) if wanted else LeaveAsItIs()
    _check_known(policy)
    if wanted:
        env = config.environment.make().unwrapped  # its observations remember other states than the policy's
    served = served_environment(name, env, config.max_rows)
    return PolicyHost(policy, served, seed=config.seed)


def _named(policy: str, config: ServeConfig) -> dict[str, Any]:
    """The configuration of a policy that a caller names: none that brings code of its own.

    Raises:
        ValueError: There is no such policy, or it does.
    """
    if ":" in policy or policy.endswith((".py", ".zip")):
        raise ValueError(
            f"policy {policy!r} brings code of its own; name a policy of configs/policy or a checkpoint"
        )
    own = policy_config(policy, config.env["name"])
    return own if own["name"] != CHECKPOINT else {**own, "path": policy}
