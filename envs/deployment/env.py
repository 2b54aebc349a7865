"""The scalar deployment environment."""

from __future__ import annotations

from typing import ClassVar

from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.deployment.config import DeploymentConfig
from serving_gym.envs.deployment.episode import DeploymentEpisode
from serving_gym.envs.deployment.render import Renderer
from serving_gym.envs.deployment.spaces import make_spaces
from serving_gym.envs.deployment.state import Deploy, DeploymentState


class DeploymentEnv(SteppedEnv[DeploymentConfig, DeploymentState]):
    """Which replicas, how parallel, serving what? `Serving/Deployment-v0`.

    A cluster of machines serves one model. Every span (a minute) it is cut into replicas, each with its own tensor- and
    pipeline-parallel degree, and each workload type gets its share of each replica, as OServe does it
    (`baselines/oserve`). Workload types follow from prompt length and predicted answer length, or are the workload's
    classes. Requests of a type go to the replicas by their shares, in turn.

    ## Action space

    `Discrete(num_candidates)`: a deployment of `envs.deployment.candidates` with an assignment, found anew at each
    decision for the forecast of the next span. The first are to stay with the present replicas, the others are the best
    uniform deployments, the end of a climb, and neighbours of both, best first; each comes twice, with its types spread
    over all replicas and with its types kept apart by the flow solution. Where the cluster allows prefill and decode
    workers (`cluster.disaggregation`, the default), up to half of the choices divide its GPUs between these: the best
    division with decode workers of each size, and one prefill worker more or less than now. What there is none of is
    masked (`action_masks()`, `info["action_mask"]`), and while a switch is under way all but to stay; one that is
    chosen anyway changes nothing, and is counted and explained in `info["refused"]`. `step` also takes a `Deploy`
    command, with any placement and assignment, and None (leave all as it is).

    A switch keeps the replicas that both deployments have. Of the others, short requests are drained and long ones move
    with their KV, weights come from the GPUs that hold them over shared links, engines start
    (`envs.simulator.deployment.plane`); their GPUs serve nothing for about 10 s. The first decision, at time zero,
    costs nothing. What a switch would send, and how long it would stall, is among a candidate's features, worked out by
    the plan that would be carried out (`envs.deployment.switch_cost`).

    ## Observation space

    `Dict(candidates=(num_candidates, 21 + types), replicas=(most replicas, 11 + types), types=(types, 3 + history),
    cluster=(14,))`, float32 in [0, 64]. Rows and their units are named in `envs.deployment.observation`: counts and
    rates are log1p(value / scale) with fixed scales, ratios are ratios. The true output length is nowhere in it.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the span: `p99` (minus the 99th
    percentile of the latency of requests that ended, seconds), `ttft_attainment/CLASS` and `tpot_attainment/CLASS`
    (minus the promises broken; one weighs as much as a second of a span's `p99`), `switch` (minus GPUs in replicas that
    come), `abandoned` (minus requests refused, failed or left unfinished), and with weight 0 unless asked for,
    `latency` (minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO), `throughput` (requests that ended)
    and `goodput` (requests finished within both promises). `p99` and `throughput` have their weights (1 and 0) in the
    environment's own arguments. `info["dt"]` is the time the step took, seconds.

    ## The default task

    Llama-2-70B on 16 H100, half an hour in which mix and rate drift: long answers in quiet minutes, short ones in busy
    ones, then long prompts; the busiest minutes are what the cluster can serve. There is something to gain in three
    ways. Long prompts hold up the answers beside them: prefill and decode workers spare them that, as long as their
    numbers fit the mix, and so does keeping types apart, as long as the mix is the one that was forecast. Wide replicas
    answer faster while there is room, narrower ones serve more when there is none. And what was switched too late
    leaves a backlog. On six episodes of the test split the means are (return, share of requests with all promises
    kept): vLLM static -619, 0.89; Llumnix's dispatch -646, 0.88; OServe -1813, 0.56; a planner like Dynamo's -1473,
    0.56, tuned -247, 0.98. OServe as published is behind static, as its capacities do not add up where types are mixed
    (`envs.deployment.profiling`).

    ## Start and end

    An episode begins with an empty cluster, the best uniform deployment for the mean of the training episode, and the
    arrivals that its seed draws from the split. It is terminated when every request has been served, refused or lost,
    and truncated `drain_limit_s` after the last arrival; what is unfinished then counts as missed and abandoned.

    ## Arguments

    See `envs.deployment.config.DeploymentConfig`.

    ## Version history

    * v0: first release.
    """

    core: DeploymentEpisode
    config_class = DeploymentConfig
    episode_class = DeploymentEpisode
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands: ClassVar[tuple[type, ...]] = (Deploy,)
