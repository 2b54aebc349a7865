"""The scalar DP/TP environment."""

from __future__ import annotations

from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.dp_tp.config import DPTPConfig
from serving_gym.envs.dp_tp.episode import DPTPEpisode
from serving_gym.envs.dp_tp.render import Renderer
from serving_gym.envs.dp_tp.spaces import make_spaces
from serving_gym.envs.dp_tp.state import ClusterState
from serving_gym.envs.interface.commands import Redeploy, SetLayout


class DPTPEnv(SteppedEnv[DPTPConfig, ClusterState]):
    """Switches a node between data and tensor parallelism while it serves. `Serving/DPTP-v1`.

    A node runs base engines that can be merged live into tensor-parallel (TP) groups and split again, as Flying Serving
    does (arXiv 2602.22593; `baselines/flying_serving`). Separate engines (data parallelism, DP) serve many requests at
    once. Merged engines serve each request faster and hold longer contexts.

    ## Action space

    `Discrete(layouts x 3)`, 78 for 8 base engines: `action = layout_index * 3 + mode`. A layout is a partition of the
    node into aligned groups of power-of-two length (`envs.interface.layout.all_layouts`; index 0 merges all engines,
    the last index separates all of them). The mode sets the treatment of running requests: 0 sequential (wait for
    stragglers), 1 soft preempt (idle members serve new requests in DP meanwhile, which are recomputed afterwards), 2
    hard preempt (running DP requests pause with their KV cache resident; those of a TP group that is split are
    recomputed). A live switch takes 15 ms once the engines are ready. Choosing the present target layout means to stay.
    Impossible actions are masked (`action_masks()`, `info["action_mask"]`). A masked action changes nothing, and is
    counted and explained in `info["refused"]`. `step` also takes a `SetLayout` or `Redeploy` command, or None (stay).

    ## Observation space

    `Dict(engines=(base engines, 13), cluster=(15 + 3 x classes,))`, float32 in [0, 64]. Rows and units are named in
    `envs.dp_tp.observation`: counts and rates are log1p(value / scale) with fixed scales, ratios are ratios. The
    observation does not contain the true output length of a request.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the interval: `latency` (minus
    the growth of the sum over requests of TTFT / SLO + TPOT / SLO), `ttft_attainment/CLASS` and `tpot_attainment/CLASS`
    (minus the number of SLO misses), `goodput` (requests finished within both SLOs), `switch` (minus the number of base
    engines reconfigured), `abandoned` (minus the number of requests refused, failed or left unfinished). `info["dt"]`
    is the time the step took, seconds.

    ## Start and end

    An episode begins with an empty node, all base engines separate, and the arrivals that its seed draws from the
    split. The first decision is at time zero, before any arrival; its switch is free. The episode is terminated when
    every request has been served, refused or lost. It is truncated `drain_limit_s` after the last arrival; unfinished
    requests then count as missed and abandoned.

    ## What there is to gain

    In version 0:
    Interquartile mean of the return on the default workload, test seeds 0 to 19: random -1155, best static layout
    (`static_4x2`) -273, best tuned heuristic (`prompt_threshold_default_tuned`) -256, `agent=api` after five minutes of
    training -243 to -248. A clairvoyant search gains 6 % over the best tuned heuristic (two episodes).

    ## Arguments

    See `envs.dp_tp.config.DPTPConfig`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are `cluster.engine=""`.
    * v0: first release.
    """

    core: DPTPEpisode
    has_clock = True
    config_class = DPTPConfig
    episode_class = DPTPEpisode
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands = (SetLayout, Redeploy)
