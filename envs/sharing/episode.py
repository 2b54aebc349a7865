"""One sharing episode: a simulated cluster, and what its time costs. The scalar and the vector environment use it."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.base.episode import BaseEpisode
from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.reward import Interval
from serving_gym.envs.interface.sharing import Event, TokenScheduler
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.sharing.action import num_actions
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.state import Share, SharingState
from serving_gym.envs.sharing.view import state_of
from serving_gym.envs.simulator.sharing.arrays import PS_PER_S
from serving_gym.envs.simulator.sharing.simulator import SharingSimulator

PAST_EPISODES = 4  # of the training split, from which the mean answer is taken; source: ours
_SECONDS_PER_HOUR = 3600.0


class SharingEpisode(BaseEpisode[SharingConfig]):
    """Runs episodes of one configuration; the kernel's `decide_many` moves them on.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    simulator: SharingSimulator

    def __init__(self, config: SharingConfig) -> None:
        super().__init__(config)
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
        self._check_front_end(self.simulator.has_front_end)
        self.setting = self.simulator.setting
        weights = [config.node_hours[kind] for kind in self.setting.kinds]
        self._node_weights = np.array(weights)

    @property
    def num_actions(self) -> int:
        """Slots, a new instance on each node, and to hold."""
        return num_actions(self.setting)

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        factors = self.config.randomise.draw(seed, len(self.config.cluster.nodes))
        self.simulator.reset(self._sample(seed, split), factors)
        self._used_ps = np.zeros(len(self.setting.kinds), np.int64)
        self._ooms = self._before_ps = 0

    # -- decisions -----------------------------------------------------------------------------------------------------

    @property
    def event(self) -> int:
        """Why the policy is asked."""
        return int(self.simulator.world.clock["event"][0])

    def carry_out(self, share: Share) -> list[str]:
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
        unfinished = self.unfinished() if truncated else None
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

    @property
    def term_weights(self) -> dict[str, float]:
        """As of every environment, and those of node hours and of instances killed."""
        hours = {f"node_hours/{kind}": self.config.node_hours[kind] for kind in self.setting.kinds}
        return super().term_weights | hours | {"ooms": self.config.ooms}

    @property
    def state(self) -> SharingState:
        """What a policy may know at this decision."""
        return state_of(self.simulator)

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy knows before an episode."""
        return self._make_policy_spec(self.config.manager.retry_s, setting=self.setting)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds for which GPU nodes have had instances."""
        computes = np.array([not node.is_cpu for node in self.config.cluster.nodes])
        used_ps = self.simulator.used_ps()[computes[self.setting.node_kinds]]
        return float(used_ps.sum() / PS_PER_S)
