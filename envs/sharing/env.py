"""The scalar sharing environment."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from serving_gym.envs.base.placement import Observations, PlacementEnv
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.sharing.batch import SharingBatch
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.render import Renderer
from serving_gym.envs.sharing.spaces import make_spaces
from serving_gym.envs.sharing.state import Share, SharingState


class SharingEnv(PlacementEnv[SharingConfig, SharingState]):
    """Many small models on few nodes: where does each request go? `Serving/Sharing-v0`.

    Dozens of models, each invoked rarely and in bursts, are served by a few CPU and GPU nodes after LLM-Mesh
    (`baselines/llm_mesh`). Instances of several models share a node: its memory, which their weights and KV pools take,
    and its time, of which one instance at a time has an iteration, a prefill of one request or a token of all its
    running ones. Loading an instance, resizing its KV pool (during which it runs nothing) and unloading it take time,
    and what an operation takes of memory is held until it is done. An allocation beyond a node's memory kills the
    instance. An instance that has had no request for `cluster.keep_alive_s` is unloaded.

    ## Action space

    `Discrete(S + N + 1)` with S = nodes x `cluster.slots_per_node` slots and N nodes: a slot (the request joins the
    instance there; slot i is on node i // slots_per_node), S + a node (a new instance of the request's model there), or
    S + N (hold). What is held is offered again after `manager.retry_s`, and refused when it has been held for
    `manager.patience_s`; what no place can take is held without asking, beyond an episode's first decision and unless
    the policy manages memory. Masked (`action_masks()`, `info["action_mask"]`) are instances of other models, nodes
    without room, and instances whose node has no memory for the KV pool that they would need; one that is chosen anyway
    is counted in `info["num_refused"]` and holds the request. The environment's memory manager sizes KV pools
    (`envs.simulator.sharing.manager`). With `manager.replace_idle` the slot of an idle instance of another model is
    possible too where the node then has room: that instance is unloaded, a new one of the request's model is loaded in
    its slot, and until that is done the larger of both is held. Where its memory is not enough, other idle instances of
    the node go with it, those that have been idle the longest first. With `token_scheduler="policy"` decisions are
    asked for where a node is to give its next iteration and two or more of its instances have one to run: a slot of
    that node, or the last action (the shortest headroom decides). `step` also takes None (hold) and a `Share` with
    commands of `envs.sharing.state`: these reach everything but such replacements, KV pools, evictions and token
    schedulers, and a policy that configures `manages_memory` is asked at more events.

    ## Observation space

    `Dict(places=(S + N, 31), request=(13,), cluster=(4 + kinds,))`, float32 in [0, 64]: a row for each action but the
    last, zero where a slot is empty. Rows and units are named in `envs.simulator.sharing.features`: counts, tokens and
    seconds are log1p(value / scale) with fixed scales, ratios are ratios. The true output length is nowhere in it.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the time to the next decision:
    those of all environments (`latency`, `ttft_attainment/CLASS`, `tpot_attainment/CLASS`, `goodput`, `abandoned`;
    weights in `objective`), `node_hours/KIND` (minus the hours for which nodes of a kind have had instances; weights in
    `node_hours`) and `ooms` (minus the instances that died of an allocation; weight `ooms`). `info["dt"]` is the time
    to the next decision, seconds, 0 between decisions of one instant.

    ## Start and end

    An episode begins with empty nodes and its first arrival. It is terminated when every request has been served,
    refused or lost, and truncated `drain_limit_s` after the last arrival; what is unfinished then counts as missed and
    abandoned.

    ## Arguments

    See `envs.sharing.config.SharingConfig`.

    ## Version history

    * v0: first release.
    """

    core: SharingEpisode
    _batch: SharingBatch
    config_class = SharingConfig
    episode_class = SharingEpisode
    batch_class = SharingBatch
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands: ClassVar[tuple[type, ...]] = (Share,)

    def _set_up(self, core: Any, render_mode: str | None) -> None:
        super()._set_up(core, render_mode)
        self._state: SharingState | None = None

    def _read_state(self) -> SharingState:
        if self._state is None:
            self._state = self.core.state
        return self._state

    def _begin(self, seed: int, split: str | None) -> None:
        self._state = None
        super()._begin(seed, split)

    def _place(self, action: int | Share | None) -> tuple[Observations, Outcome]:
        self._state = None
        command = action if isinstance(action, Share) else None
        chosen = action if isinstance(action, int) else self.core.num_actions - 1
        observations, outcomes = self._batch.step(np.array([chosen], np.int64), command)
        outcome = outcomes[0]
        assert outcome is not None, "an episode that is not done has an outcome"
        return observations, outcome
