"""The scalar autoscaling environment."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.autoscaling.action import is_changes
from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.episode import AutoscalingEpisode
from serving_gym.envs.autoscaling.features import PARTS
from serving_gym.envs.autoscaling.render import Renderer
from serving_gym.envs.autoscaling.spaces import make_spaces
from serving_gym.envs.autoscaling.state import AutoscalingState
from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.base.validation import check_running


class AutoscalingEnv(SteppedEnv[AutoscalingConfig, AutoscalingState]):
    """Scales the instances of several models in several regions. `Serving/Autoscaling-v1`.

    An endpoint is one model in one region. Every minute the policy sets the instances of each endpoint, which occupy
    one machine each. Starting an instance takes minutes, depending on the machine: a vacant machine (a cold start), one
    of the endpoint's own spot instances, which was leased to others (one minute, five at most), or a machine of another
    model (ten minutes; two hours if the region lacks the weights). An instance that is removed first finishes its
    requests. Interactive requests go to the first region whose effective memory utilisation is under 70 %. Other
    requests wait in a queue manager until an endpoint has room, for 24 hours at most. After SageServe
    (`baselines/sageserve`).

    ## Action space

    `MultiDiscrete` with three entries for each of the P endpoints:

    | entry | values |
    |---|---|
    | change of the number of instances | 2 `max_change` + 1: from -`max_change` to +`max_change` |
    | order of machines | 0: spot first (own, then other models', then vacant); 1: vacant first |
    | release level of the endpoint's non-interactive requests | `queue.levels` |

    With spot first, removed instances become spot instances; with vacant first they leave their machine vacant.
    `action_masks()` and `info["action_mask"]`, (sum of values,), mark the possible values. The number of instances is
    limited by the instance slots and machines from above and by `min_instances` from below; each endpoint's mask
    assumes that the other endpoints stay unchanged. Changes that cannot be carried out are skipped, counted and
    explained in `info["refused"]`. `step` also takes a sequence of `ScaleChange` and `Release` commands with any
    values, and None (no change).

    ## Observation space

    A dictionary of float32 arrays in [0, 64]. The order of endpoints carries no meaning. The observation contains
    neither true output lengths nor future arrivals.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the interval:

    | term | is |
    |---|---|
    | `ttft_attainment/CLASS`, `tpot_attainment/CLASS` | minus the number of SLO misses |
    | `latency` | minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO |
    | `goodput` | requests finished within both SLOs |
    | `switch` | minus the number of instances that begin to start or to drain |
    | `abandoned` | minus the number of requests refused, failed or left unfinished |
    | `gpu_usd` | minus the price of machines whose instances serve, start or drain, USD |
    | `startup_usd` | minus the part of it during which they start, USD |
    | `backlog_usd` | minus the price of the machine time of non-interactive requests queued at the end, USD |
    | `spot_rent_usd` | minus the price of spot instances' machines, USD |
    | `spot_revenue_usd` | revenue of spot instances, USD |

    `backlog_usd` takes the benchmarked capacity. `info["dt"]` is the time the step took, seconds.

    ## Start and end

    An episode begins with the fleet's initial instances, no requests, and one week of known past traffic. The seed
    draws the hour of the week, all arrivals, all lengths and all times to reclaim spot instances; none of them depends
    on the actions. Requests arrive for `episode_s`. The last step runs without further arrivals until every request has
    ended, those of the queue manager included, on the instances of that moment and at their price. Queued
    non-interactive requests are charged by `backlog_usd` as well, because machines that serve only them are cheaper
    than those of the day. After `drain_limit_s` unfinished requests count as missed and abandoned and the episode is
    truncated; otherwise it is terminated.

    ## The default task

    Llama-2-13B on four to twelve H100 (`cluster=fleet_autoscaled`) for a day of SageServe's tiers whose load also
    swings by 40 % within twenty minutes (`workload=tiers_swinging`). `experiment=autoscaling_day` is the cheaper task
    of the benchmark: Llama-2-7B on A40, 170,000 requests a day.

    ## What there is to gain

    `clairvoyant_scaling` knows the traffic to come and keeps every SLO, whatever it costs.

    ## Arguments

    Often changed: `decision_interval_s`, `episode_s`, `max_change`, `machines`, `queue`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are `cluster.engine=""`.
    * v0: first release.
    """

    core: AutoscalingEpisode
    has_clock = True
    config_class = AutoscalingConfig
    episode_class = AutoscalingEpisode
    parts = PARTS
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer

    def _checked(self, action: Any) -> Any:
        if not is_changes(action):
            return super()._checked(action)
        check_running(self._begun, self._over)
        return action

    @property
    def standing_reward(self) -> float:
        """Charge of the reward for queued requests if the episode ended now; 0 after its end."""
        return self.core.standing_reward
