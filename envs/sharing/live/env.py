"""The sharing environment on launched servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from serving_gym.envs.base.env import Observation
from serving_gym.envs.base.placement import Observations
from serving_gym.envs.interface.sharing import Event, NewInstance, TokenScheduler
from serving_gym.envs.live.control import ControlDeadline, ControlOverride, NoDecision
from serving_gym.envs.live.run import DrivesServers
from serving_gym.envs.sharing.action import decode_action
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.env import SharingEnv
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.live.fleet import Asked, SharedFleet
from serving_gym.envs.sharing.live.mirror import Mirror
from serving_gym.envs.sharing.state import Share
from serving_gym.envs.simulator.sharing.arrays import PS_PER_S

Action = np.integer | int | Share | NoDecision | None


class LiveSharingEnv(DrivesServers, SharingEnv):
    """`Serving/Sharing-v1` with servers of this machine: same spaces, state, reward and records.

    A node is a GPU or a set of cores (`backend.slots`), an instance a launched server of a model: loading it takes a
    cold start, and where it was launched with sleep mode, unloading puts it to sleep and loading the same model there
    wakes it. What differs is what reality differs in. The clock is real and goes on while a policy thinks; where it
    takes longer than `control_within_s`, or fails, the request is held (`info["overrides"]`). Servers give out their
    iterations themselves. A KV pool keeps the size that it was started with: for the environment's own manager that of
    `env.manager.least_tokens` and more, if the first request needs more; an instance takes what fits it, and `ResizeKV`
    is refused. A request that has a token stays where it is. The envelope bounds dwell and budget of slots. An instance
    that dies or does not come up counts as one that died of an allocation. `close()` stops the servers.

    Args:
        make_fleet: The servers, given the episode's setting.
        control_within_s: Longest time a policy may take, s.
        render_mode: `human`, `ansi`, `rgb_array` or None.
        config: As of `SharingEnv`.

    Raises:
        ValueError: something in the configuration is impossible on launched servers.
    """

    fleet: SharedFleet
    commands = (Share, NoDecision)

    def __init__(
        self,
        make_fleet: Callable[[SharingEpisode], SharedFleet],
        control_within_s: float,
        render_mode: str | None = None,
        **config: Any,
    ) -> None:
        self._set_up(SharingEpisode(SharingConfig(**config)), render_mode)
        check_shared(self.config)
        self.config.randomise.check_live()
        self.fleet = make_fleet(self.core)
        self._mirror = Mirror(self.core, self.fleet)
        self._deadline = ControlDeadline(control_within_s)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode of a seed: the arrivals and lengths it has in simulation."""
        self.core.reset(*self._next_episode(seed, options))
        self._mirror.warm_up()
        deadline_s = self.core.deadline_ps / PS_PER_S
        self.fleet.reset(self.core.simulator.workload, self.core.slos, deadline_s)
        self._look()
        self._begin_rendering()
        return self._observe(), self._live_info(0.0, {}, "", None, [])

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a decision and waits for the next one."""
        action = self._checked(action)
        overrides = self._deadline.overrides(action, self.fleet.now_s)
        executed, reasons = self._carry_out(None if overrides or isinstance(action, NoDecision) else action)
        self.fleet.note_decision()
        self.core.num_refused += bool(reasons)
        latency_cost = self._look()
        terminated = self._asked.event is Event.END
        truncated = self._asked.event is Event.NONE
        self.core.done = terminated or truncated
        interval, own, dt_s = self.core.measure(latency_cost, truncated)
        reward = self.core.reward(interval, own)
        self._record(action, reward, "; ".join(reasons))
        terms = interval.terms(self.core.classes) | own
        info = self._live_info(dt_s, terms, "; ".join(reasons), executed, overrides)
        return self._observe(), reward, terminated, truncated, info

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds for which GPU nodes have had instances."""
        computes = np.array([not node.is_cpu for node in self.config.cluster.nodes])
        return float(self.fleet.used_s[computes[self.core.setting.node_kinds]].sum())

    def transition_times(self) -> dict[str, list[float]]:
        """How long each load has taken, from the order to the answer to a request, s."""
        return {"start_s": self.fleet.start_times_s()}

    def fork(self) -> NoReturn:
        """Refuses: reality has no second copy.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("an episode on launched servers cannot be forked")

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _carry_out(self, action: np.integer | int | Share | None) -> tuple[dict[str, Any] | None, list[str]]:
        """Where the offered request went, None: it is held or there is none; and what could not be done."""
        share = self._share_of(action)
        reasons = [reason for reason in map(self.fleet.apply, share.commands) if reason]
        if self._asked.event is not Event.PLACEMENT:
            if share.place is not None:
                reasons.append(f"nothing is to be placed at a {self._asked.event.name} event")
            return None, reasons
        row, place = self._asked.request, share.place
        refused = ""
        if place is not None:
            refused = self._why_masked(action) or self.fleet.place(row, place)
        if place is None or refused:
            self.fleet.hold(row, share.retry)
        reasons += filter(None, (refused,))
        slot = self.fleet.placed.get(row)
        return None if slot is None else {"request": row, "slot": slot}, reasons

    def _share_of(self, action: np.integer | int | Share | None) -> Share:
        """An action spelt out; a new instance has the KV pool that the environment's manager gives it."""
        if isinstance(action, Share):
            return action
        if action is None or self._asked.event is not Event.PLACEMENT:
            return Share()
        slot, node = decode_action(int(action), self.core.setting)
        if node is None:
            return Share(slot)
        return Share(NewInstance(node, self._mirror.new_pool(node, self._asked.request)))

    def _why_masked(self, action: Any) -> str:
        """Why an action of the action space is not possible now; a command may go further than the mask."""
        if isinstance(action, Share):
            return ""
        slot = int(action)
        if self.action_masks()[slot]:
            return ""
        if slot < self.core.setting.num_slots:
            why = self.fleet.why_not_there(self._asked.request, slot)
            return why or "what is in the KV pool leaves no room for the request"
        return "the node has no room, or no slot that may be reconfigured now"

    # -- the observation -----------------------------------------------------------------------------------------------

    def _look(self) -> float:
        """Waits for what is to be decided, and writes down what is known then; returns the running latency cost."""
        self._asked: Asked = self.fleet.wait(self._mirror.has_place)
        latency_cost = self._mirror.reflect(self._asked)
        self._observations: Observations = self._mirror.observe()
        self._state = None
        self._deadline.shown()
        return latency_cost

    def _live_info(
        self,
        dt_s: float,
        terms: dict[str, float],
        refused: str,
        executed: dict[str, Any] | None,
        overrides: list[ControlOverride],
    ) -> dict[str, Any]:
        return self._info(dt_s, terms, refused) | {"executed": executed, "overrides": overrides}


def check_shared(config: SharingConfig) -> None:
    """Refuses what launched servers cannot be.

    Raises:
        ValueError: iterations are to be a decision, or idle instances to be replaced.
    """
    if config.manager.replace_idle:
        raise ValueError(
            "env.manager.replace_idle=true is not available on live servers: there idle instances are unloaded after "
            "cluster.keep_alive_s"
        )
    if config.token_scheduler == TokenScheduler.POLICY:
        raise ValueError(
            "env.token_scheduler=policy is not available on live servers: vLLM gives out its iterations itself"
        )
