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
    """Divides a cluster into replicas, sets their parallelism and assigns workload types. `Serving/Deployment-v1`.

    A cluster of machines serves one model. In every span (one minute) the policy divides it into replicas, each with
    its own tensor- and pipeline-parallel degree, and assigns each workload type a share of each replica, as OServe does
    (`baselines/oserve`). Workload types are clusters of prompt length and predicted output length, or the workload's
    classes. Requests of one type are dispatched to the replicas in turn, in proportion to these shares.

    ## Action space

    `Discrete(num_candidates)`: one deployment of `envs.deployment.candidates` with its assignment. The candidates are
    computed anew at each decision from the forecast of the next span. The first ones keep the present replicas. The
    others are the best uniform deployments, the result of a hill climb, and neighbours of both, best first. Each
    deployment appears with two assignments: types spread over all replicas, and types separated by the flow solution.
    If the cluster allows prefill and decode workers (`cluster.disaggregation`, the default), up to half of the
    candidates divide its GPUs between the two roles: the best division for each size of decode workers, and one prefill
    worker more or fewer than now. Missing candidates are masked (`action_masks()`, `info["action_mask"]`); during a
    switch only the candidates that keep the replicas are possible. A masked action changes nothing, and is counted and
    explained in `info["refused"]`. `step` also takes a `Deploy` command, with any placement and assignment, and None
    (no change).

    A switch keeps the replicas that occur in both deployments. On the others, short requests are drained and long ones
    migrate with their KV cache, weights are sent over shared links from the GPUs that hold them, and engines start
    (`envs.simulator.deployment.plane`); the GPUs of these replicas serve nothing for about 10 s. The first decision, at
    time zero, costs nothing. A candidate's features contain the bytes that its switch would send and the time that it
    would stall, computed by the plan that would be carried out (`envs.deployment.switch_cost`).

    ## Observation space

    `Dict(candidates=(num_candidates, 21 + types), replicas=(most replicas, 11 + types), types=(types, 3 + history),
    cluster=(14,))`, float32 in [0, 64]. Rows and units are named in `envs.deployment.observation`: counts and rates are
    log1p(value / scale) with fixed scales, ratios are ratios. The observation does not contain the true output length.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the span: `p99` (minus the 99th
    percentile of the latency of requests that ended, seconds), `ttft_attainment/CLASS` and `tpot_attainment/CLASS`
    (minus the number of SLO misses; one miss weighs as much as one second of a span's `p99`), `switch` (minus the
    number of GPUs in new replicas), `abandoned` (minus the number of requests refused, failed or left unfinished), and,
    with weight 0 by default, `latency` (minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO),
    `throughput` (requests that ended) and `goodput` (requests finished within both SLOs). The weights of `p99` (1) and
    `throughput` (0) are arguments of the environment. `info["dt"]` is the time the step took, seconds.

    ## The default task

    Llama-2-70B on 16 H100 for half an hour in which mix and rate drift: long outputs in quiet minutes, short outputs in
    busy minutes, then long prompts. In the busiest minutes the load equals the capacity of the cluster. A policy can
    gain in three ways. Long prompts delay the decoding of other requests: prefill and decode workers avoid this while
    their numbers fit the mix, and so does separating types while the mix is as forecast. Wide replicas answer faster
    under low load, narrow ones have more throughput under high load. A switch that comes too late leaves a backlog. On
    six episodes of the test split the means are (return, share of requests that attain all SLOs): vLLM static -619,
    0.89; Llumnix's dispatch -646, 0.88; a planner like Dynamo's -1473, 0.56, tuned -247, 0.98. On two of them vLLM
    static has -389, OServe -926 (0.77), and -1862 (0.57) by its literal reading (`policy=oserve_literal`).

    ## Start and end

    An episode begins with an empty cluster, the best uniform deployment for the mean of the training episode, and the
    arrivals that its seed draws from the split. It is terminated when every request has been served, refused or lost.
    It is truncated `drain_limit_s` after the last arrival; unfinished requests then count as missed and abandoned.

    ## What there is to gain

    In version 0:
    Interquartile mean of the return on the default workload, test seeds 0 to 5: random -61,569, best static deployment
    (`vllm_static`) -615, best tuned heuristic (`dynamo_tuned`) -193, `zoo/deployment` -189. `clairvoyant_deployment`,
    which knows the next span's demand but does not divide prefill from decode, has -1532.

    ## Arguments

    See `envs.deployment.config.DeploymentConfig`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are
      `cluster.engine=vllm-0.15 cluster.front_end=none`.
    * v0: first release.
    """

    core: DeploymentEpisode
    config_class = DeploymentConfig
    episode_class = DeploymentEpisode
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands: ClassVar[tuple[type, ...]] = (Deploy,)
