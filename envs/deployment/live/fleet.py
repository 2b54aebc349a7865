"""Replicas of this machine that are drained, stopped and started as a deployment says, behind one router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.deployment.live.platform import Platform
from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, EngineStatus
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launched import GONE, LaunchedRun, bring, wait_until_idle
from serving_gym.envs.live.routers import WeightedRouter
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.supervision import FIRST_BACK_OFF_S
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.envs.machines.cluster import Deployment, Replica
from serving_gym.envs.workload.schema import Workload

FloatArray = NDArray[np.float64]
SWITCHES = ("ad_hoc", "reload")


@dataclass
class Relaunch:
    """A switch under way.

    Attributes:
        started_s: When it began, seconds of the run.
        going: Slots whose servers are drained and stopped.
        coming: Slots of the replicas that come.
        ordered: Those of `going` that have been told to stop.
        begun: Those of `coming` that have been told to start.
    """

    started_s: float
    going: tuple[int, ...]
    coming: tuple[int, ...]
    ordered: set[int]
    begun: set[int]


@dataclass(frozen=True, slots=True)
class Switched:
    """A switch that is done.

    Attributes:
        started_s: When it began, seconds of the run.
        took_s: Until the last replica served, or had failed to.
        drain_s: Until the last of those that went had stopped.
        failed: Replicas that did not come up, and are tried again like servers that die.
    """

    started_s: float
    took_s: float
    drain_s: float
    failed: int


class DividedFleet(LaunchedRun):
    """Launched servers that a cluster is divided into. Use it in a `with` block, which no server survives.

    A switch goes like this. Replicas that both deployments have go on. The others get no new requests, what has no
    token yet goes to other replicas or waits, and what has one is drained (`Deadlines.drain_s`); then their servers
    stop. A replica that comes is started as soon as its GPUs are free, and serves once it has answered a canary.
    Nothing is migrated, and weights come from storage, so that "ad_hoc" and "reload" are the same here.

    Args:
        slots: Places for servers, all stopped: twice the most replicas of a deployment, as those that go and those that
            come are there together.
        platform: What replicas are made of.
        deployment: Of no replicas, for the cluster.
        max_num_seqs: Most running requests of a replica.
        order: Queue order of the servers, fcfs or priority.
        settings: How to deal with the servers.
        limits: What a policy may not do. Slots are GPUs there, of those which a switch gives to another replica; how
            many servers stay is not limited, as another layout of all GPUs leaves none.
        back_off_s: How long after its first death a server is started again.

    Attributes:
        deployment: Replicas in force, or those to be when the switch under way is done.
        standing: Replica in each slot that is not empty; those that go and those that come included.
        switch: The switch under way.
        switches: Those that are done, in the present run.
        shares: (K, J), of each type's requests that go to each replica of `deployment`, relative.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        platform: Platform,
        deployment: Deployment,
        max_num_seqs: int,
        order: str,
        settings: LiveSettings,
        limits: EnvelopeSettings,
        back_off_s: float = FIRST_BACK_OFF_S,
    ) -> None:
        self.platform, self.deployment = platform, deployment
        self.standing: dict[int, Replica] = {}
        self.switch: Relaunch | None = None
        self.switches: list[Switched] = []
        self._router = WeightedRouter()
        self._drained_s, self._begun, self._num_types = 0.0, False, 0
        self.shares = np.zeros((0, 0))
        most = [max_num_seqs] * len(slots)
        session = LiveSession(settings, most, order, self._router.choose, lambda row: None)
        num_gpus = deployment.cluster.num_gpus
        super().__init__(slots, session, limits, num_gpus, back_off_s)

    # -- a run ---------------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the present run's clock has started."""
        return self._begun

    def coming(self) -> bool:
        """Whether servers are starting that requests may wait for."""
        return self.switch is not None or super().coming()

    def reset(
        self, workload: Workload, slos: tuple[SLO, ...], types: NDArray[np.int64], num_types: int
    ) -> None:
        """Drops what is in flight; the next run begins with `open`, and has no deployment yet.

        Args:
            workload: Requests.
            slos: SLO of each class.
            types: (N,), workload type of each.
            num_types: J.
        """
        self._loop.run(self._session.drop())
        self.workload, self.slos = workload, slos
        self._router.types, self._num_types = types, num_types
        self.shares = np.zeros((0, num_types))
        self.switch, self._begun = None, False
        self.switches.clear()

    def open(self) -> None:
        """Brings the servers of the deployment into service, and begins the run.

        Raises:
            ValueError: a server does not start, or does not answer as vLLM does.
        """
        kept = {e: replica for e, replica in self.standing.items() if replica in self.deployment.replicas}
        for e in set(range(len(self.slots))) - set(kept):
            self._empty(e)
        self.standing = kept | self._placed(kept)
        for e in set(self.standing) - set(kept):
            self.slots[e].server.settings = self.platform.settings_of(self.standing[e])
        self.prepare(self.workload, self.slos, self.standing)
        self._share_out()
        self._begun = True
        self.begin()

    def _empty(self, e: int) -> None:
        """Stops what a slot has, at once, before others start in its place."""
        slot = self.slots[e]
        self.give_up(e)
        bring(slot, False)
        wait_until_idle(slot)

    # -- commands ------------------------------------------------------------------------------------------------------

    def deploy(self, deployment: Deployment, shares: ArrayLike, switch: str = "ad_hoc") -> Receipt:
        """Begins a switch to a deployment, and lets requests go where an assignment says.

        Before the run has begun it is the choice of the first deployment.

        Args:
            deployment: Replicas in their places; those that stand already go on.
            shares: (K, J), of each type's requests that go to each replica, relative; of none the least loaded one has
                them.
            switch: "ad_hoc" or "reload".
        """
        weights = np.asarray(shares, np.float64)
        reason = self.why_not(deployment, switch) or self._why_no_shares(deployment, weights)
        if reason:
            return Receipt(False, reason)
        before, self.deployment, self.shares = self.deployment, deployment, weights
        if not self._begun:
            return Receipt(True)
        if set(before.replicas) != set(deployment.replicas):
            self._begin_switch()
        self._share_out()
        return Receipt(True)

    def why_not(self, deployment: Deployment, switch: str = "ad_hoc") -> str:
        """Why a deployment cannot be switched to now; empty where it can."""
        if switch not in SWITCHES:
            return f"switch must be one of {', '.join(SWITCHES)}, got {switch!r}"
        if deployment.cluster != self.deployment.cluster:
            return "the deployment is for another cluster"
        if not deployment.replicas:
            return "a deployment needs a replica"
        impossible = self.platform.why_not_all(deployment)
        if impossible or not self._begun or set(deployment.replicas) == set(self.deployment.replicas):
            return impossible
        if self.switch is not None:
            return "a switch is under way"
        gpus = changed_gpus(self.deployment, deployment)
        return next(filter(None, (self.envelope.refuses(gpu, self.now_s) for gpu in gpus)), "")

    def _why_no_shares(self, deployment: Deployment, shares: FloatArray) -> str:
        expected = (len(deployment.replicas), self._num_types)
        if shares.shape != expected or not np.isfinite(shares).all() or (shares < 0).any():
            return f"shares must be {expected}, finite and not negative; got {shares.shape}"
        return ""

    # -- a switch ------------------------------------------------------------------------------------------------------

    def _begin_switch(self) -> None:
        new = set(self.deployment.replicas)
        going = tuple(e for e, replica in self.standing.items() if replica not in new)
        kept = {e: replica for e, replica in self.standing.items() if replica in new}
        coming = self._placed(self.standing, kept)
        for gpu in {gpu for replica in coming.values() for gpu in replica.gpus}:
            self.envelope.note(gpu, self.now_s)
        self.standing |= coming
        self.switch = Relaunch(self.now_s, going, tuple(coming), set(), set())
        self._drained_s = self.now_s
        self._go_on(self.switch)

    def _placed(
        self, taken: dict[int, Replica], kept: dict[int, Replica] | None = None
    ) -> dict[int, Replica]:
        """Empty slots for the replicas of the deployment that have none yet."""
        have = set((taken if kept is None else kept).values())
        free = iter(e for e in range(len(self.slots)) if e not in taken)
        return {next(free): replica for replica in self.deployment.replicas if replica not in have}

    def _go_on(self, switch: Relaunch) -> None:
        """Gives the orders whose time has come, and notes the end."""
        for e in switch.going:
            if e not in switch.ordered and self.slots[e].idle:
                self._cordon(e)
                switch.ordered.add(e)
        left = [e for e in switch.going if e not in switch.ordered or not self._is_gone(e)]
        if left:
            self._drained_s = self.now_s
        occupied = {gpu for e in left for gpu in self.standing[e].gpus}
        for e in switch.coming:
            if e not in switch.begun and not occupied & set(self.standing[e].gpus):
                self.slots[e].server.settings = self.platform.settings_of(self.standing[e])
                self.slots[e].start()
                switch.begun.add(e)
        up = all(e in switch.begun and self._is_up(e) for e in switch.coming)
        if not left and up:
            self._end(switch)

    def _cordon(self, e: int) -> None:
        """Takes a server out of service, and what it has not begun to others."""
        self.give_up(e)
        slot = self.slots[e]
        if slot.state is SlotState.READY:
            slot.stop()
            self._loop.call(lambda: self._session.replay.recall(e))

    def _is_gone(self, e: int) -> bool:
        return self.slots[e].idle and self.slots[e].state in GONE

    def _is_up(self, e: int) -> bool:
        """Whether a replica that comes serves, or has failed to come up."""
        failed = self.slots[e].idle and self.slots[e].state is SlotState.FAILED
        return failed or self.in_service(e)

    def _end(self, switch: Relaunch) -> None:
        failed = [e for e in switch.coming if not self.in_service(e)]
        for e in failed:
            self.bring_back(e)
        for e in switch.going:
            del self.standing[e]
        took_s = self.now_s - switch.started_s
        self.switches.append(
            Switched(switch.started_s, took_s, self._drained_s - switch.started_s, len(failed))
        )
        self.switch = None

    def look_after(self) -> None:
        """Looks after servers that die, and takes the switch under way further."""
        super().look_after()
        if self.switch is not None:
            self._go_on(self.switch)

    def _share_out(self) -> None:
        """Sets where requests of each type go."""
        shares = np.zeros((len(self.slots), self._num_types))
        for e, replica in self.standing.items():
            if replica in self.deployment.replicas:
                shares[e] = self.shares[self.deployment.replicas.index(replica)]
        self._loop.call(lambda: self._router.share_out(shares))

    # -- observations -------------------------------------------------------------------------------------------------

    @property
    def places(self) -> NDArray[np.int64]:
        """(K,), slot of each replica of `deployment`; before the run has begun those that they will have."""
        kept = {e: replica for e, replica in self.standing.items() if replica in self.deployment.replicas}
        known = kept if self._begun else kept | self._placed(kept)
        where = {replica: e for e, replica in known.items()}
        return np.array([where[replica] for replica in self.deployment.replicas], np.int64)

    @property
    def draining(self) -> bool:
        """Whether the switch under way waits for requests."""
        switch = self.switch
        return switch is not None and any(not self._is_gone(e) for e in switch.going)

    @property
    def due_s(self) -> float:
        """When the present phase of the switch under way ends at the latest, seconds of the run."""
        switch = self.switch
        assert switch is not None
        if self.draining:
            return switch.started_s + self.slots[0].deadlines.drain_s
        slot = self.slots[switch.coming[0]] if switch.coming else self.slots[0]
        longest_s = slot.server.settings.start_within_s + slot.deadlines.canary_s
        return self._drained_s + longest_s

    def shown(self) -> NDArray[np.void]:
        """(S,) ENGINE_STATE_DTYPE, with the widths and places of replicas; those that do not serve are inactive."""
        rows = self.engines() if self._begun else np.zeros(len(self.slots), ENGINE_STATE_DTYPE)
        standing = (
            self.standing
            if self._begun
            else dict(zip(self.places.tolist(), self.deployment.replicas, strict=True))
        )
        for e, replica in standing.items():
            rows["first_gpu"][e], rows["width"][e] = min(replica.gpus), replica.kind.num_gpus
            if not self._begun:
                server = self._session.servers[e]
                rows["status"][e] = EngineStatus.ACTIVE
                rows["kv_capacity_blocks"][e] = server.cache.num_blocks
                rows["kv_capacity_tokens"][e] = server.cache.num_blocks * server.cache.block_size
            elif not self.in_service(e):
                drains = self.slots[e].state in (SlotState.CORDONED, SlotState.DRAINING)
                rows["status"][e] = EngineStatus.DRAINING if drains else EngineStatus.INACTIVE
        return rows

    def p99_s(self, from_s: float) -> float:
        """99th percentile of the latency of requests that were served since a time, seconds; 0 without any."""

        def ended() -> FloatArray:
            ledger = self._session.ledger
            rows = np.flatnonzero(ledger.finish_s >= from_s)
            return np.asarray(ledger.finish_s[rows] - ledger.arrival_s[rows], np.float64)

        latencies_s = self._loop.call(ended)
        return float(np.percentile(latencies_s, 99)) if len(latencies_s) else 0.0


def changed_gpus(before: Deployment, after: Deployment) -> list[int]:
    """GPUs that belong to another replica than before."""
    new = set(after.replicas) - set(before.replicas)
    return sorted(gpu for replica in new for gpu in replica.gpus)
