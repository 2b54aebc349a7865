"""The scalar DP/TP environment."""

from __future__ import annotations

from typing import ClassVar

from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.dp_tp.config import DPTPConfig
from serving_gym.envs.dp_tp.episode import DPTPEpisode
from serving_gym.envs.dp_tp.features import PARTS
from serving_gym.envs.dp_tp.render import Renderer
from serving_gym.envs.dp_tp.spaces import make_spaces
from serving_gym.envs.dp_tp.state import ClusterState
from serving_gym.envs.interface.commands import Redeploy, SetLayout


class DPTPEnv(SteppedEnv[DPTPConfig, ClusterState]):
    """Switches a node between data and tensor parallelism while it serves. `Serving/DPTP-v1`.

    A node runs base engines that can be merged live into tensor-parallel (TP) groups and split again, as Flying Serving
    does (arXiv 2602.22593; `baselines/flying_serving`). Separate engines (data parallelism, DP) serve many requests at
    once. Merged engines serve each request faster and hold longer contexts. Every second the policy chooses the layout
    of the node.

    ## Action space

    `Discrete(layouts x 3)`, 78 for 8 base engines: `action = layout_index * 3 + mode`. A layout is a partition of the
    node into aligned groups of power-of-two length (`envs.interface.layout.all_layouts`); index 0 merges all engines,
    the last index separates all of them.

    | mode | running requests |
    |---|---|
    | 0 sequential | finish first, in the old groups |
    | 1 soft preempt | finish first; idle members serve new requests meanwhile, which are recomputed after a merge |
    | 2 hard preempt | pause with their KV cache resident; those of a TP group that is split are recomputed |

    A live switch takes 15 ms once the engines are ready. Choosing the present target layout means to stay. Impossible
    actions are masked (`action_masks()`, `info["action_mask"]`). A masked action changes nothing, and is counted and
    explained in `info["refused"]`. `step` also takes a `SetLayout` or `Redeploy` command, or None (stay).

    ## Observation space

    A dictionary of float32 arrays in [0, 64]. Numbers of a group are repeated on every member. The observation does not
    contain the true output length of a request. Short and long averages are exponential, with the time constants
    `scales.short_s` and `scales.long_s`.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the interval:

    | term | is |
    |---|---|
    | `latency` | minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO |
    | `ttft_attainment/CLASS`, `tpot_attainment/CLASS` | minus the number of SLO misses |
    | `goodput` | requests finished within both SLOs |
    | `switch` | minus the number of base engines reconfigured |
    | `abandoned` | minus the number of requests refused, failed or left unfinished |

    `info["dt"]` is the time the step took, seconds.

    ## Start and end

    An episode begins with an empty node, all base engines separate, and the arrivals that its seed draws from the
    split. The first decision is at time zero, before any arrival; its switch is free. The episode is terminated when
    every request has been served, refused or lost. It is truncated `drain_limit_s` after the last arrival; unfinished
    requests then count as missed and abandoned.

    ## The default task

    Nemotron-8B on eight H200 (`cluster=nemotron_8b_h200`). Chat, code and agents with long prompts follow one another,
    each quiet and busy, in an order drawn for each episode (`workload=chat_code_agents`).

    ## What there is to gain

    In version 0 `agent=api` had -243 to -248 after five minutes of training where the best tuned heuristic had -256,
    and a clairvoyant search gained 6 % over that heuristic (two episodes).

    ## Arguments

    Often changed: `decision_interval_s`, `decide_on` (decisions at arrivals of a class).

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are `cluster.engine=""`.
    * v0: first release.
    """

    core: DPTPEpisode
    has_clock = True
    config_class = DPTPConfig
    episode_class = DPTPEpisode
    parts = PARTS
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands: ClassVar[tuple[type, ...]] = (SetLayout, Redeploy)
