"""One sharing episode: a simulated cluster, and what its time costs. Both environments are made of these."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.reward import Interval, RewardMeter
from serving_gym.envs.interface.sharing import Event, TokenScheduler
from serving_gym.envs.interface.slo import promises
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.state import Share, SharingState
from serving_gym.envs.sharing.view import state_of
from serving_gym.envs.simulator.sharing.arrays import PS_PER_S
from serving_gym.envs.simulator.sharing.simulator import SharingSimulator
from serving_gym.envs.workload.registry import WorkloadSource

PAST_EPISODES = 4  # of the training split, from which the mean answer is taken; source: ours
_SECONDS_PER_HOUR = 3600.0


class SharingEpisode:
    """Runs episodes of one configuration; the kernel's `decide_many` moves them on.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    def __init__(self, config: SharingConfig) -> None:
        self.config = config
        self.source = WorkloadSource(config.workload)
        self.classes = self.source.classes
        self.slos = promises(config.slos, self.classes)
        if self.source.models == ("",):
            raise ValueError(
                f"workload {config.workload.name!r} names no models; sharing needs one whose requests ask for models "
                "by name, such as functions_fitted"
            )
        past = [self.source.sample(seed, "train").output_tokens for seed in range(PAST_EPISODES)]
        self.simulator = SharingSimulator(
            config.cluster,
            self.slos,
            self.source.models,
            config.manager,
            float(np.concatenate(past).mean()),
            TokenScheduler(config.token_scheduler),
        )
        self.setting = self.simulator.setting
        weights = [config.node_hours[kind] for kind in self.setting.kinds]
        self._node_weights = np.array(weights)
        self.meter = RewardMeter(len(self.classes))
        self.begun, self.done = False, True

    @property
    def num_actions(self) -> int:
        """Slots, a new instance on each node, and to hold."""
        return self.setting.num_slots + self.setting.num_nodes + 1

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode that a seed stands for.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        workload = self.source.sample(seed, split or self.config.split)
        self.simulator.reset(workload)
        last_s = float(workload.arrival_s[-1]) + self.config.drain_limit_s
        self.deadline_ps = round(last_s * PS_PER_S)
        self.meter.reset()
        self._used_ps = np.zeros(len(self.setting.kinds), np.int64)
        self._ooms = self._before_ps = 0
        self.begun, self.done, self.num_refused = True, False, 0

    # -- decisions -----------------------------------------------------------------------------------------------------

    @property
    def event(self) -> int:
        """Why the policy is asked."""
        return int(self.simulator.world.clock["event"][0])

    def tell(self, share: Share) -> list[str]:
        """Carries out a decision that says more than an action; returns why parts of it were refused."""
        simulator = self.simulator
        receipts = [simulator.apply(command) for command in share.commands]
        if self.event == Event.PLACEMENT:
            receipts.append(simulator.place(share.place, share.retry))
        elif self.event == Event.ITERATION:
            if share.place is None or isinstance(share.place, (int, np.integer)):
                slot = None if share.place is None else int(share.place)
                receipts.append(simulator.iterate(slot, share.prefill))
            else:
                receipts.append(Receipt(False, "an iteration is given to a slot, not to a new instance"))
        elif share.place is not None:
            receipts.append(Receipt(False, f"nothing is to be placed at a {Event(self.event).name} event"))
        simulator.note_decision()
        return [receipt.reason for receipt in receipts if not receipt.accepted]

    # -- what it cost --------------------------------------------------------------------------------------------------

    def measure(self, latency_cost: float, truncated: bool) -> tuple[Interval, dict[str, float], float]:
        """What the time since the last call brought: the common terms, the environment's own, and seconds.

        Args:
            latency_cost: Running sum of TTFT / SLO + TPOT / SLO.
            truncated: Whether the episode was cut off, so that what is unfinished counts as lost.
        """
        simulator = self.simulator
        unfinished = self.unfinished().astype(np.int64) if truncated else None
        stats = simulator.world.stats[:, : len(TOTALS)]
        interval = self.meter.measure(stats, latency_cost, 0, unfinished)
        used_ps = np.bincount(
            self.setting.node_kinds, weights=simulator.used_ps(), minlength=len(self._used_ps)
        )
        hours = (used_ps - self._used_ps) / PS_PER_S / _SECONDS_PER_HOUR
        ooms = int(simulator.world.clock["num_ooms"][0])
        terms = {f"node_hours/{kind}": -h for kind, h in zip(self.setting.kinds, hours.tolist(), strict=True)}
        terms["ooms"] = -float(ooms - self._ooms)
        dt_s = (simulator.now_ps - self._before_ps) / PS_PER_S
        self._used_ps, self._ooms, self._before_ps = used_ps, ooms, simulator.now_ps
        return interval, terms, dt_s

    def reward(self, interval: Interval, terms: dict[str, float]) -> float:
        """The weighted sum."""
        hours = [terms[f"node_hours/{kind}"] for kind in self.setting.kinds]
        own = float(np.dot(self._node_weights, hours)) + self.config.ooms * terms["ooms"]
        return interval.reward(self.config.objective) + self.config.objective.scale * own

    def unfinished(self) -> NDArray[np.float64]:
        """Requests of each class that are still in the system, (C,)."""
        stats = self.simulator.world.stats
        gone = sum(stats[:, TOTALS.index(name)] for name in ("refused", "failed", "finished"))
        return np.asarray(stats[:, TOTALS.index("arrived")] - gone)

    @property
    def state(self) -> SharingState:
        """What a policy may know at this decision."""
        return state_of(self.simulator)

    def fork(self) -> SharingEpisode:
        """A copy that continues to the same numbers."""
        copy = SharingEpisode.__new__(SharingEpisode)
        copy.__dict__.update(self.__dict__)
        copy.simulator, copy.meter = self.simulator.fork(), self.meter.fork()
        return copy
