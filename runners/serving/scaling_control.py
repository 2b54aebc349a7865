"""Asks an autoscaling policy at its own period, and keeps its last decision for whoever asks in between.

One of these is shared by all listeners of a process. While too little is known of the replicas, while the policy fails
or takes too long, and before there is the traffic history that it needs, no decision is made and the last one stands;
each is counted (`serving_gym_scaling_stands_total`) and said once in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import history_needed_of, period_of
from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE
from serving_gym.envs.live.discovery import DiscoveryError, KubernetesAPI
from serving_gym.runners.serving.scaling_history import read_history, write_history
from serving_gym.runners.serving.scaling_replicas import Replicas, Scraper, posted, posted_held
from serving_gym.runners.serving.scaling_settings import ScalingSettings
from serving_gym.runners.serving.scaling_view import Deployment, ScalingView, change_of

if TYPE_CHECKING:
    from serving_gym.runners.serving.service import PolicyService

_log = logging.getLogger(__name__)

_KEEP_EVERY_S = 300.0  # between two writings of the history
_AT_ONCE_S = 1.0  # time for which a decision is waited for; one that takes longer does not stop the readings


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a deployment.

    Attributes:
        desired: Replicas that there should be, within the bounds; those that there are where the policy's word does not
            apply (`mode`).
        proposed: Replicas that the policy wants, within the bounds.
        present: Replicas that there were, those to come included.
        at_s: Unix time.
        applies: Whether the policy's word applies.
    """

    desired: int
    proposed: int
    present: int
    at_s: float
    applies: bool


class ScalingControl:
    """Decides about the number of replicas of a deployment, again and again.

    Args:
        service: The served policy.
        settings: Settings.
        clock: Monotonic seconds.

    Attributes:
        replicas: What is known of the replicas.
        decision: The last one; None: none yet.
        problem: Why there is none yet, or why it stands; empty where it is fresh.
        lowest: Fewest replicas.
        highest: Most replicas.

    Raises:
        ValueError: A setting is impossible, or the setting has more than one endpoint.
    """

    _of: ClassVar[WeakKeyDictionary[Any, ScalingControl]] = WeakKeyDictionary()

    def __init__(
        self,
        service: PolicyService,
        settings: ScalingSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service, self.settings, self._clock = service, settings, clock
        config, told = service.env.config, service.env.policy_spec
        known = self._history(config, time.time())
        known_s = len(known) * config.history_bin_s
        self._began_s = clock() - known_s
        self.view = ScalingView(config, told, time.time() - known_s)
        if known_s:
            self.view.meter.begin_with(known)
        self._kept_s = known_s  # when the history was last written
        self._known_s, self._begun = known_s, False  # whether there has been a reading
        self.replicas = Replicas(settings, self.view.begun_s)
        urls = settings.replicas or service.config.backend.endpoints
        remote = service.config.allow_remote or service.config.backend.allow_remote
        self._scraper = Scraper(self.replicas, urls, remote) if urls else None
        self._api = KubernetesAPI() if settings.read_scale else None
        self.lowest, self.highest = self._bounds()
        self.decision: Decision | None = None
        self.problem = "no replica has been heard of yet"
        self._said = ""  # the problem without its numbers
        self._decided_s = -float("inf")
        self._asked_s: float | None = None  # when more replicas were asked for than there were
        self._given_up = False  # whether they are not waited for any longer
        self._changed = asyncio.Condition()
        self._deciding: asyncio.Task[None] | None = None
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._gauges = self._make_gauges()

    @classmethod
    def of(cls, service: PolicyService) -> Self:
        """The one that all listeners of a service share."""
        if service not in cls._of:
            cls._of[service] = cls(service, service.config.scaling)
        return cls._of[service]  # type: ignore[return-value]

    def begin(self) -> None:
        """Has the clock run on from the first reading, so that no time without any counts as time without traffic."""
        if not self._begun:
            self._begun, self._began_s = True, self._clock() - self._known_s
            self.view.begun_s = self.replicas.begun_s = time.time() - self._known_s

    def _history(self, config: AutoscalingConfig, now_s: float) -> NDArray[np.void]:
        """Traffic that is known from before; none where there is no file."""
        path = Path(self.settings.history or "")
        if self.settings.history is None:
            return np.zeros(0, TRAFFIC_DTYPE)
        return read_history(path, config.history_bin_s, now_s, config.history_s)

    def _keep_history(self) -> None:
        """Writes the traffic that is known."""
        config, now_s, path = self.view.config, self.now_s, self.settings.history
        if path is None:
            return
        self._kept_s = now_s
        most = round(config.history_s / config.history_bin_s)
        found = self.view.meter.traffic(config.history_bin_s, min(now_s, self.view.meter.times_s[-1]), most)
        try:
            write_history(Path(path), found.bin_s, self.view.begun_s + found.end_s, found.rows)
        except OSError as error:
            self.service.count("scaling_history_failures")
            _log.warning("scaling.history=%s cannot be written: %s", path, error)

    def _bounds(self) -> tuple[int, int]:
        spec, settings = self.view.spec, self.settings
        places = spec.max_instances if spec.places is None else int(spec.places.sum())
        lowest = spec.min_instances if settings.min_replicas is None else settings.min_replicas
        highest = places if settings.max_replicas is None else settings.max_replicas
        if highest > places:
            raise ValueError(
                f"scaling.max_replicas ({highest}) is more than the cluster has places ({places})"
            )
        if lowest > highest:
            raise ValueError(
                f"scaling.min_replicas ({lowest}) must be at most the most there can be ({highest})"
            )
        return lowest, highest

    def _make_gauges(self) -> dict[str, Any]:
        from prometheus_client import Gauge

        described = {
            self.settings.metric: "Replicas that there should be",
            "serving_gym_proposed_replicas": "Replicas that the policy wants",
            "serving_gym_ready_replicas": "Replicas that serve",
            "serving_gym_stale_replicas": "Replicas whose last reading is too old",
            "serving_gym_scaling_history_seconds": "Traffic that is known",
            "serving_gym_scaling_decision_age_seconds": "Age of the last decision",
        }
        return {name: Gauge(name, text, registry=self.service.registry) for name, text in described.items()}

    @property
    def period_s(self) -> float:
        """Time between two decisions."""
        period_s = period_of(self.service.host.policy)
        return float(self.view.config.decision_interval_s) if period_s is None else period_s

    @property
    def name(self) -> str:
        """The policy, by the name that it was asked for by."""
        policy = self.service.config.policy
        return str(policy.get("path") or policy["name"])

    @property
    def scrapes(self) -> bool:
        """Whether pages of replicas are read; otherwise readings come to the listeners."""
        return self._scraper is not None

    @property
    def now_s(self) -> float:
        """Time on the view's clock."""
        return self._clock() - self._began_s

    async def start(self) -> None:
        """Begins, for one listener more."""
        self._users += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends when the last listener has stopped."""
        self._users -= 1
        if self._users or self._task is None:
            return
        for task in (self._task, self._deciding):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._task = self._deciding = None
        self._keep_history()
        self._of.pop(self.service, None)
        for gauge in self._gauges.values():
            self.service.registry.unregister(gauge)

    async def _run(self) -> None:
        import aiohttp

        async with aiohttp.ClientSession() as session:
            due_s = self.now_s
            while True:
                try:
                    await self._read(session)
                    await self.step(sample=self.scrapes)
                    if self.now_s - self._kept_s >= _KEEP_EVERY_S:
                        self._keep_history()
                except Exception as error:  # noqa: BLE001 -- the next period is another chance
                    self._stand("fault", f"{type(error).__name__}: {error}")
                due_s = max(due_s + self.settings.scrape_interval_s, self.now_s)
                await asyncio.sleep(due_s - self.now_s)

    async def _read(self, session: Any) -> None:
        """Reads what is to be read: pages of replicas, and what the target is to have."""
        if self._api is not None:
            namespace, kind, name = self.settings.target_parts
            path = f"/apis/apps/v1/namespaces/{namespace}/{kind}/{name}/scale"
            try:
                wanted = (await self._api.get(path))["spec"]["replicas"]
                self.replicas.wanted = int(wanted)
            except (DiscoveryError, KeyError, TypeError, ValueError) as error:
                self.service.count("scaling_read_failures", source="scale")
                if self.replicas.wanted is not None:
                    _log.warning("%s cannot be read (%s); what was last asked for stands in", path, error)
                self.replicas.wanted = None
        if self._scraper is not None:
            self.begin()
            failures = self._scraper.failures
            await self._scraper.read(session, self.now_s)
            if (failed := self._scraper.failures - failures) > 0:
                self.service.count("scaling_read_failures", failed, source="page")

    async def post(self, body: Any) -> None:
        """Takes readings that are posted (`runners.serving.scaling_replicas`).

        Raises:
            ValueError: They are not of that form.
        """
        if self._scraper is not None:
            self.replicas.num_held, self.replicas.held_s = posted_held(body), self.now_s
            return
        values, found, held, wanted = posted(body)
        self.begin()
        now_s = self.now_s
        self.replicas.there_are(found, now_s)
        for name, said in values.items():
            self.replicas.take(name, said, now_s)
        self.replicas.num_held = held
        if self._api is None:
            self.replicas.wanted = wanted
        await self.step()

    async def step(self, columns: Mapping[str, float] | None = None, sample: bool = True) -> None:
        """Takes a sample of what is known, and asks the policy where it is due.

        Args:
            columns: What was counted of all replicas together since the last sample, by name of
                `runners.serving.scaling_view.COUNTERS`.
            sample: Whether readings have come since the last sample.
        """
        now_s = self.now_s
        seen = self.replicas.deployment(self.wanted(now_s), self.highest)
        if sample and self.replicas.seen_s is not None:
            self.view.note(now_s, seen)
            self.view.meter.add(now_s, columns or {})
        self._show(now_s, seen)
        if now_s - self._decided_s < self.period_s or self._deciding is not None:
            return
        problem = self.replicas.problem(now_s)
        if problem:
            self._stand("stale", problem)
        elif missing := self._missing_history(now_s):
            self._stand("history", f"{self.name} needs {missing}")
        else:
            self._decided_s = now_s
            self._deciding = asyncio.create_task(self._decide(now_s, seen))
            await asyncio.wait({self._deciding}, timeout=_AT_ONCE_S)

    def _missing_history(self, now_s: float) -> str:
        """What of the traffic history the policy lacks; empty: nothing."""
        needed_s = history_needed_of(self.service.host.policy)
        least_s = max(needed_s, self.view.config.history_bin_s)
        if (known_s := self.view.known_s(now_s)) < least_s:
            return f"{least_s:g} s of traffic history, and there are {known_s:g} s"
        if needed_s and "input_tokens_total" not in self.view.meter.heard:
            return "the traffic history, and no source reports input_tokens_total"
        return ""

    def wanted(self, now_s: float) -> int:
        """Replicas that the deployment is to have: as a source says, or what was last asked for."""
        present = self.replicas.present()
        if self.replicas.wanted is not None:
            return self.replicas.wanted
        asked = 0 if self.decision is None else self.decision.desired
        if asked <= present:
            self._asked_s, self._given_up = None, False
            return present
        if self._asked_s is None:
            self._asked_s = now_s
        if now_s - self._asked_s <= self.settings.start_within_s:
            return asked
        if not self._given_up:
            self._given_up = True
            self.service.count("scaling_unfollowed")
            since_s = now_s - self._asked_s
            _log.warning("%d replicas were asked for %.0f s ago and there are %d", asked, since_s, present)
        return present

    async def _decide(self, now_s: float, seen: Deployment) -> None:
        try:
            await self._take_decision(now_s, seen)
        except Exception as error:  # noqa: BLE001 -- the next period is another chance
            self._stand("fault", f"{type(error).__name__}: {error}")
        finally:
            self._deciding = None

    async def _take_decision(self, now_s: float, seen: Deployment) -> None:
        state = self.view.state(now_s, seen)
        answer = await self.service.decide(state)
        replaced = answer.by == "fallback" and self.service.config.fallback is not None
        if answer.error and not replaced:  # nothing but the rule to leave all as it is takes its place
            self._stand("policy", f"the policy fails: {answer.error}")
            return
        present = len(state.endpoints[0].present)
        change = change_of(answer.decision, self.view.spec.max_change)
        proposed = self._bounded(present + change)
        desired = proposed if answer.applies else self._bounded(present)
        before, self.decision = (
            self.decision,
            Decision(desired, proposed, present, time.time(), answer.applies),
        )
        self.problem = self._said = ""
        self._show(now_s, seen)
        self.service.log.info(
            "replicas",
            extra={"fields": {"desired": desired, "proposed": proposed, "present": present}},
        )
        if before is None or before.desired != desired:
            async with self._changed:
                self._changed.notify_all()

    def _bounded(self, count: int) -> int:
        return min(max(count, self.lowest), self.highest)

    def _stand(self, kind: str, problem: str) -> None:
        """The last decision stands; a reason is said once, whatever its numbers become."""
        self.service.count("scaling_stands", reason=kind)
        if (said := re.sub(r"\d+", "", problem)) != self._said:
            last = "none yet" if self.decision is None else f"{self.decision.desired} replicas"
            _log.warning("%s; the last decision stands: %s", problem, last)
            self.service.log.warning("stands", extra={"fields": {"reason": problem}})
        self._said, self.problem = said, problem

    def _show(self, now_s: float, seen: Deployment) -> None:
        shown = {
            "serving_gym_ready_replicas": len(seen.replicas),
            "serving_gym_stale_replicas": len(self.replicas.stale(now_s)),
            "serving_gym_scaling_history_seconds": self.view.known_s(now_s),
        }
        if self.decision is not None:
            shown |= {
                self.settings.metric: self.decision.desired,
                "serving_gym_proposed_replicas": self.decision.proposed,
                "serving_gym_scaling_decision_age_seconds": time.time() - self.decision.at_s,
            }
        else:
            shown |= dict.fromkeys((self.settings.metric, "serving_gym_proposed_replicas"), float("nan"))
        for name, value in shown.items():
            self._gauges[name].set(value)

    async def changed(self, desired: int | None) -> int:
        """Waits until another number than `desired` is desired, and returns it."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.decision is not None and self.decision.desired != desired
            )
        assert self.decision is not None
        return self.decision.desired

    def about(self, namespace: str, name: str | None = None) -> bool:
        """Whether something is the target.

        Args:
            namespace: Its namespace.
            name: Its name; None: not told.
        """
        if not self.settings.target:
            return True
        own, _, target = self.settings.target_parts
        return namespace == own and name in (None, target)

    def as_json(self) -> dict[str, Any]:
        """The last decision for JSON, `desired_replicas` null where there is none yet."""
        decision = self.decision
        return {
            "desired_replicas": None if decision is None else decision.desired,
            "proposed_replicas": None if decision is None else decision.proposed,
            "present_replicas": None if decision is None else decision.present,
            "ready_replicas": len(self.replicas.deployment(0, 0).replicas),
            "decided_at_s": None if decision is None else decision.at_s,
            "applies": None if decision is None else decision.applies,
            "min_replicas": self.lowest,
            "max_replicas": self.highest,
            "policy": self.name,
            "problem": self.problem,
        }
