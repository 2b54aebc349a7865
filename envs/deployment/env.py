"""The scalar deployment environment."""

from __future__ import annotations

from typing import ClassVar

from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.deployment.config import DeploymentConfig
from serving_gym.envs.deployment.episode import DeploymentEpisode
from serving_gym.envs.deployment.features import PARTS
from serving_gym.envs.deployment.render import Renderer
from serving_gym.envs.deployment.spaces import make_spaces
from serving_gym.envs.deployment.state import Deploy, DeploymentState


class DeploymentEnv(SteppedEnv[DeploymentConfig, DeploymentState]):
    """Divides a cluster into replicas, sets their parallelism and assigns workload types. `Serving/Deployment-v1`.

    A cluster of machines serves one model. In every span (one minute) the policy divides it into replicas, each with
    its own tensor- and pipeline-parallel degree, and assigns each workload type a share of each replica, as OServe does
    (`baselines/oserve`). A policy that states a period of its own is asked at that period instead. Workload types are
    clusters of prompt length and predicted output length, or the workload's classes. Requests of one type are
    dispatched to the replicas in turn, in proportion to these shares.

    ## Action space

    `Discrete(num_candidates)`: one deployment of `envs.deployment.candidates` with its assignment. The candidates are
    computed anew at each decision from the forecast of the next span.

    | candidates | are |
    |---|---|
    | the first ones | the present replicas |
    | the others, best first | the best uniform deployments, the result of a hill climb, and neighbours of both |
    | up to half, with `cluster.disaggregation` | divisions into prefill and decode workers |

    Each deployment appears with two assignments: types spread over all replicas, and types separated by the flow
    solution. Divisions are the best one for each size of decode workers, and one prefill worker more or fewer than now.
    Missing candidates are masked (`action_masks()`, `info["action_mask"]`); during a switch only the candidates that
    keep the replicas are possible. A masked action changes nothing, and is counted and explained in `info["refused"]`.
    `step` also takes a `Deploy` command, with any placement and assignment, and None (no change).

    A switch keeps the replicas that occur in both deployments. On the others, short requests are drained and long ones
    migrate with their KV cache, weights are sent over shared links from the GPUs that hold them, and engines start
    (`envs.simulator.deployment.plane`); the GPUs of these replicas serve nothing for about 10 s. The first decision, at
    time zero, costs nothing. A candidate's features contain the bytes that its switch would send and the time that it
    would stall, computed by the plan that would be carried out (`envs.deployment.switch_cost`).

    ## Observation space

    A dictionary of float32 arrays in [0, 64]. Rows behind the last candidate or replica are zero. The observation does
    not contain the true output length.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the span:

    | term | is | weight |
    |---|---|---|
    | `p99` | minus the 99th percentile of the latency of requests that ended, seconds | `p99`, 1 |
    | `ttft_attainment/CLASS`, `tpot_attainment/CLASS` | minus the number of SLO misses | `objective` |
    | `switch` | minus the number of GPUs in new replicas | `objective` |
    | `abandoned` | minus the number of requests refused, failed or left unfinished | `objective` |
    | `latency` | minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO | `objective`, 0 |
    | `throughput` | requests that ended | `throughput`, 0 |
    | `goodput` | requests finished within both SLOs | `objective`, 0 |

    One SLO miss weighs as much as one second of a span's `p99`. `info["dt"]` is the time the step took, seconds. `p99`
    is charged for each span that ends in the step, so that a policy's own period does not change what is counted.

    ## Start and end

    An episode begins with an empty cluster, the best uniform deployment for the mean of the training episode, and the
    arrivals that its seed draws from the split. It is terminated when every request has been served, refused or lost.
    It is truncated `drain_limit_s` after the last arrival; unfinished requests then count as missed and abandoned.

    ## The default task

    Llama-2-70B on 16 H100 (`cluster=machines_h100_x16`) for half an hour in which mix and rate drift
    (`workload=drifting_types`): long outputs in quiet minutes, short outputs in busy minutes, then long prompts. In the
    busiest minutes the load equals the capacity of the cluster. A policy can gain in three ways. Long prompts delay the
    decoding of other requests: prefill and decode workers avoid this while their numbers fit the mix, and so does
    separating types while the mix is as forecast. Wide replicas answer faster under low load, narrow ones have more
    throughput under high load. A switch that comes too late leaves a backlog.

    ## What there is to gain

    `clairvoyant_deployment` knows the next span's demand but does not divide prefill from decode.

    ## Arguments

    Often changed: `num_candidates`, `types`, `profiling`, `forecast_spans`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are
      `cluster.engine=vllm-0.15 cluster.front_end=none`.
    * v0: first release.
    """

    core: DeploymentEpisode
    config_class = DeploymentConfig
    episode_class = DeploymentEpisode
    parts = PARTS
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands: ClassVar[tuple[type, ...]] = (Deploy,)
    has_clock = True
