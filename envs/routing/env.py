"""The scalar routing environment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import Observations, PlacementEnv
from serving_gym.envs.interface.fleet import FleetCommand
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.routing.action import decode_action, encode_place, refusal
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.render import Renderer
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.routing.state import Dispatch, RoutingState
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore


class RoutingEnv(PlacementEnv[RoutingConfig, RoutingState]):
    """Routes each request to one replica of a fleet of LLM engines. `Serving/Routing-v0`.

    A router stands in front of a fleet whose replicas are identical, or differ in GPU, size and model. When a request
    arrives, the policy sends it to one replica, where it stays, or holds it in the router's queue. The policy observes
    what a real router can observe: its own record of requests sent and tokens received, gauges as of the last poll, and
    a prediction of the output length. `baselines` has PreServe's router (arXiv 2504.03702) and the routers of
    production systems.

    ## Action space

    `Discrete(places + 1)`, where a place is one replica of the fleet: actions 0 to places - 1 send the request to that
    replica, the last action holds it. Held requests are offered again at the next retry, `retry_s` after the first of
    them was held, in order of priority, then of age. If one of them is held once more, the others of its class, model
    and region wait for the following retry. When `queue_capacity` requests are held, a further hold refuses the
    request. Replicas that are out of service, serve another model or cannot hold the request are masked
    (`action_masks()`, `info["action_mask"]`). A masked action counts in `info["num_refused"]` and holds the request.
    `step` also takes None (hold) and a `Dispatch`, which can change the request's priority and send commands to the
    fleet, for example `Migrate`.

    ## Observation space

    `Dict(places=(places, 20), request=(7 + classes,), cluster=(11,))`, float32 in [0, 64]. With `max_places`, unused
    rows are zero. Rows and units are named in `envs.simulator.kernel.features`: counts, tokens and seconds are
    log1p(value / scale) with fixed scales, ratios are ratios. The observation does not contain the true output length.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the time to the next decision:
    `latency` (minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO, accrued while they are in the
    system), `ttft_attainment/CLASS` and `tpot_attainment/CLASS` (minus the number of SLO misses), `goodput` (requests
    finished within both SLOs), `abandoned` (minus the number of requests refused, failed or left unfinished; each of
    them also counts as a miss of both SLOs, whatever it had attained before). The cost of a decision is charged when it
    arises, often many decisions later. `info["dt"]` is the time to the next decision, seconds; a semi-Markov agent
    discounts by it.

    ## Start and end

    An episode begins with an empty fleet and the first arrival. It is terminated when every request has been served,
    refused or lost. It is truncated `drain_limit_s` after the last arrival; unfinished requests then count as missed
    and abandoned.

    ## What there is to gain

    Interquartile mean of the return on the default workload, 1000 requests, test seeds 0 to 7: random -254,
    `least_request` -54, `jsq` -46, best tuned score (`linear_score_tuned`) -32.6, `zoo/routing` -33.1. A clairvoyant
    search gains 1 % over the best tuned score (one episode); a relaxation bounds any policy at a third of its cost.

    ## Arguments

    See `envs.routing.config.RoutingConfig`.

    ## Version history

    * v0: first release.
    """

    core: RoutingEpisode
    _batch: RoutingBatch
    config_class = RoutingConfig
    episode_class = RoutingEpisode
    batch_class = RoutingBatch
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands = (Dispatch,)

    def _place(self, action: int | Dispatch | None) -> tuple[Observations, Outcome]:
        core, dispatch = self.core, decode_action(action, self.config.num_rows)
        if dispatch.priority is not None:
            core.give_priority(dispatch.priority)
        receipts = [core.command(command) for command in dispatch.commands]
        if isinstance(action, Dispatch):
            self._batch.look_at(0)
        place = encode_place(dispatch.place, self.config.num_rows)
        observations, outcomes = self._batch.step(np.array([place], np.int64))
        reasons = [receipt.reason for receipt in receipts if not receipt.accepted]
        if core.refused_actions > core.num_refused:
            core.num_refused = core.refused_actions
            reasons.append(refusal(place))
        outcome = Outcome(
            float(outcomes.rewards(self.config.objective)[0]),
            outcomes.interval(0).terms(core.classes),
            float(outcomes.dt_s[0]),
            bool(outcomes.terminated[0]),
            bool(outcomes.truncated[0]),
            "; ".join(reasons),
        )
        return observations, outcome

    def command(self, command: FleetCommand) -> str:
        """Tells the fleet something between decisions; returns why it was refused, or nothing.

        What has been observed, the mask included, stays as of the decision.
        """
        receipt = self.core.command(command)
        self._batch.look_at(0)
        return receipt.reason

    def roll_forks(
        self, actions: Sequence[int | None], score: PlaceScore, most_decisions: int
    ) -> NDArray[np.float64]:
        """Returns of as many forks as actions, (len(actions),): each takes its action, then the score decides.

        Args:
            actions: Places; None or the last action: to hold.
            score: What decides afterwards.
            most_decisions: Decisions after which a fork is rolled no further.
        """
        first = np.array([self._batch.hold if action is None else action for action in actions], np.int64)
        forever = np.full(len(actions), np.inf)
        outcomes, _ = self._batch.roll_branches([0] * len(actions), first, score, forever, most_decisions)
        return outcomes.rewards(self.config.objective)
