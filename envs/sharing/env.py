"""The scalar sharing environment."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from serving_gym.envs.base.placement import Observations, PlacementEnv
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.sharing.batch import SharingBatch
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.features import PARTS
from serving_gym.envs.sharing.render import Renderer
from serving_gym.envs.sharing.spaces import make_spaces
from serving_gym.envs.sharing.state import Share, SharingState


class SharingEnv(PlacementEnv[SharingConfig, SharingState]):
    """Routes requests for many small models to instances that share few nodes. `Serving/Sharing-v1`.

    Dozens of models, each invoked rarely and in bursts, are served by a few CPU and GPU nodes, after LLM-Mesh
    (`baselines/llm_mesh`). At every arrival the policy places the request. Instances of several models share a node:
    its memory, which holds their weights and KV pools, and its compute time: one instance at a time runs an iteration,
    which is the prefill of one request or one token for each of its running requests. Loading an instance, resizing its
    KV pool (during which it runs nothing) and unloading it take time, and the memory of an operation is held until the
    operation ends. An allocation beyond a node's memory kills the instance. An instance that has had no request for
    `cluster.keep_alive_s` is unloaded.

    ## Action space

    `Discrete(S + N + 1)` with S = nodes x `cluster.slots_per_node` slots and N nodes.

    | action | does |
    |---|---|
    | 0 to S - 1 | sends the request to the instance in that slot; slot i is on node i // `slots_per_node` |
    | S to S + N - 1 | loads a new instance of the request's model on that node |
    | S + N | holds the request; it is offered again after `manager.retry_s`, refused after `manager.patience_s` |

    A request that no slot or node can take is held without a decision, except at the first decision of an episode and
    if the policy manages memory. Masked (`action_masks()`, `info["action_mask"]`) are instances of other models, nodes
    without room, and instances whose node lacks the memory for the KV pool that they would need. A masked action counts
    in `info["num_refused"]` and holds the request. The environment's memory manager sizes KV pools
    (`envs.simulator.sharing.manager`).

    With `manager.replace_idle` the slot of an idle instance of another model is possible too, if the node has room
    after the replacement: that instance is unloaded and a new one of the request's model is loaded in its slot; until
    then the larger of the two memory sizes is held. If the memory of that instance does not suffice, other idle
    instances of the node are unloaded with it, the longest idle first.

    With `token_scheduler="policy"` there is also a decision whenever a node starts an iteration and two or more of its
    instances are ready to run: the action is a slot of that node, or the last action (the shortest headroom runs).
    `step` also takes None (hold) and a `Share` with commands of `envs.interface.sharing`. Commands load and unload
    instances, resize KV pools, evict requests and set the token scheduler; only an action of the action space replaces
    an idle instance. A policy that configures `manages_memory` decides at more events.

    ## Observation space

    A dictionary of float32 arrays in [0, 64]. A place is an action but the last: a slot, or a new instance on a node.
    The row of an empty slot is zero. The observation does not contain the
    true output length.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the time to the next decision:

    | term | is | weight |
    |---|---|---|
    | `latency` | minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO | `objective` |
    | `ttft_attainment/CLASS`, `tpot_attainment/CLASS` | minus the number of SLO misses | `objective` |
    | `goodput` | requests finished within both SLOs | `objective` |
    | `abandoned` | minus the number of requests refused, failed or left unfinished | `objective` |
    | `node_hours/KIND` | minus the hours for which nodes of a kind have instances | `node_hours` |
    | `ooms` | minus the number of instances killed by an allocation | `ooms` |

    `info["dt"]` is the time to the next decision, seconds; 0 between decisions at the same instant.

    ## Start and end

    An episode begins with empty nodes and the first arrival. It is terminated when every request has been served,
    refused or lost. It is truncated `drain_limit_s` after the last arrival; unfinished requests then count as missed
    and abandoned.

    ## The default task

    64 models of Llama-2-7B's size on four CPU and four GPU nodes (`cluster=nodes_cpu4_gpu4`), invoked as serverless
    functions for 30 minutes (`workload=functions_fitted`). Instances go after a second without requests.
    `experiment=sharing_warm` is the task of the benchmark: loading takes seconds, instances stay until their memory is
    needed, and the decision is which one to unload.

    ## What there is to gain

    Trained agents only equal `place_score_tuned` on the default task. On `experiment=sharing_warm`, `belady`, which
    knows when each model is asked for again, is 18 % ahead of the best tuned score (version 0).

    ## Arguments

    Often changed: `token_scheduler`, `manager`, `node_hours`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are
      `cluster.engine=vllm-0.6 cluster.front_end=none`.
    * v0: first release.
    """

    core: SharingEpisode
    _batch: SharingBatch
    config_class = SharingConfig
    episode_class = SharingEpisode
    batch_class = SharingBatch
    parts = PARTS
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
