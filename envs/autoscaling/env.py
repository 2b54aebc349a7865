"""The scalar autoscaling environment."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.autoscaling.action import is_changes
from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.episode import AutoscalingEpisode
from serving_gym.envs.autoscaling.render import Renderer
from serving_gym.envs.autoscaling.spaces import make_spaces
from serving_gym.envs.autoscaling.state import AutoscalingState
from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.base.validation import check_running


class AutoscalingEnv(SteppedEnv[AutoscalingConfig, AutoscalingState]):
    """How many instances, of which model, where, and when? `Serving/Autoscaling-v0`.

    Models are served in regions; an endpoint is a model in a region. Its instances, a machine each, come within
    minutes: from vacant machines (a cold start), from its own spot instances, which were leased to others (a minute,
    five at most), or from another model's (ten minutes, two hours where the region lacks the weights). Those that go
    finish what they have first. Interactive requests go to the first region under 70 % of effective memory utilisation;
    the others wait in a queue manager until an endpoint has room, for 24 hours at most. After SageServe
    (`baselines/sageserve`).

    ## Action space

    `MultiDiscrete`, three levers for each of the P endpoints:

    * the change of its number of instances, from -max_change to +max_change (2 max_change + 1 entries);
    * 0: spot machines first (own spot instances, then those of other models, then vacant machines; instances that go
      are donated), 1: vacant machines first (instances that go leave their machine vacant);
    * its release level of non-interactive requests (`queue.levels`).

    `action_masks()` and `info["action_mask"]`, (sum of entries,), say which entries are possible: as many instances as
    there are places and machines for, none below `min_instances`, each endpoint as if the others left all as it is.
    What cannot be carried out is left out, counted and explained in `info["refused"]`. `step` also takes a sequence of
    `ScaleChange` and `Release`, which may say anything, and None (leave all as it is).

    ## Observation space

    `Dict(endpoints=(P, 34), clock=(5,))`, float32 in [0, 64]; rows and units are named in
    `envs.autoscaling.observation`. Endpoints have no order that means anything. True output lengths and the future are
    nowhere in it.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the interval:
    `ttft_attainment/CLASS` and `tpot_attainment/CLASS` (minus the promises broken), `latency` (minus the growth of the
    sum over requests of TTFT / SLO + TPOT / SLO), `goodput` (requests finished within both), `switch` (minus the
    instances that begin to come or to go), `abandoned` (minus the requests refused, failed or left unfinished), and in
    USD `gpu_usd` (minus the price of machines whose instances serve, start or drain), `startup_usd` (minus that part of
    it in which they start), `backlog_usd` (minus the price of the machine time that non-interactive requests take which
    stand in line at the end, at the benchmarked capacity), `spot_rent_usd` (minus the price of spot instances'
    machines) and `spot_revenue_usd` (what those earn). `info["dt"]` is the time the step took, seconds.

    ## Start and end

    An episode begins with the fleet's first instances, an empty system, and a week of traffic known from before; its
    seed draws the hour of the week, all arrivals, lengths and times until spot instances are back, whatever is decided.
    Requests arrive for `episode_s`. The last step goes on without further arrivals until all inside have ended, the
    queue manager's included, with the instances there are then and at their price; what stands in line is charged for
    besides, since machines that serve nobody else serve it more cheaply than those of the day. What has not ended
    after `drain_limit_s` counts as missed and abandoned, and the episode as truncated, else as terminated.

    ## Arguments

    See `envs.autoscaling.config.AutoscalingConfig`.

    ## Version history

    * v0: first release.
    """

    core: AutoscalingEpisode
    config_class = AutoscalingConfig
    episode_class = AutoscalingEpisode
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer

    def _checked(self, action: Any) -> Any:
        if not is_changes(action):
            return super()._checked(action)
        check_running(self._begun, self._over)
        return action

    @property
    def standing_reward(self) -> float:
        """What the reward would charge for the requests in line if the episode ended now; 0 where it is over."""
        return self.core.standing_reward
