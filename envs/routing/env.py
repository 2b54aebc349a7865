"""The scalar routing environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import Observations, PlacementEnv
from serving_gym.envs.interface.fleet import FleetCommand
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.routing.action import check_admission, decode_action, encode_action, refusal
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.render import Renderer
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.routing.state import Defer, Dispatch, Reject, RoutingState, Verdict
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore


class RoutingEnv(PlacementEnv[RoutingConfig, RoutingState]):
    """Routes each request to one replica of a fleet of LLM engines. `Serving/Routing-v1`.

    A router stands in front of a fleet whose replicas are identical, or differ in GPU, size and model. When a request
    arrives, the policy sends it to one replica, where it stays, or holds it in the router's queue. The policy observes
    what a real router can observe: its own record of requests sent and tokens received, gauges as of the last poll, and
    a prediction of the output length. `baselines` has PreServe's router (arXiv 2504.03702) and the routers of
    production systems.

    ## Action space

    `Discrete(places + 1)`, where a place is one replica of the fleet: actions 0 to places - 1 send the request to that
    replica, action `places` holds it. Held requests are offered again at the next retry, `retry_s` after the first of
    them was held, in order of priority, then of age. If one of them is held once more, the others of its class, model
    and region wait for the following retry. When `queue_capacity` requests are held, a further hold refuses the
    request. Replicas that are out of service, serve another model or cannot hold the request are masked
    (`action_masks()`, `info["action_mask"]`). A masked action counts in `info["num_refused"]` and holds the request.
    `step` also takes None (hold) and a `Dispatch`, which can change the request's priority and send commands to the
    fleet, for example `Migrate`.

    With `admission=True` the space is `Discrete(places + 3)`: the last two actions refuse the request (its client gets
    an error at once) and defer it (it goes behind all others of the router's queue, for good; possible once). `step`
    also takes `Reject` and `Defer`.

    ## Observation space

    `Dict(places=(places, 20), request=(7 + classes,), cluster=(11,))`, float32 in [0, 64]; with `admission=True` also
    `admission=(4 + 3 classes,)`. With `max_places`, unused
    rows are zero. Rows and units are named in `envs.simulator.kernel.features`: counts, tokens and seconds are
    log1p(value / scale) with fixed scales, ratios are ratios. The observation does not contain the true output length.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the time to the next decision:
    `latency` (minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO, accrued while they are in the
    system), `ttft_attainment/CLASS` and `tpot_attainment/CLASS` (minus the number of SLO misses), `goodput` (requests
    finished within both SLOs), `abandoned` (minus the number of requests refused, failed or left unfinished; each of
    them also counts as a miss of both SLOs, whatever it had attained before), with `admission=True` also
    `refused/CLASS` (minus the number of requests refused). The cost of a decision is charged when it
    arises, often many decisions later. `info["dt"]` is the time to the next decision, seconds; a semi-Markov agent
    discounts by it.

    ## Start and end

    An episode begins with an empty fleet and the first arrival. It is terminated when every request has been served,
    refused or lost. It is truncated `drain_limit_s` after the last arrival; unfinished requests then count as missed
    and abandoned.

    ## What there is to gain

    In version 0:
    Interquartile mean of the return on the default workload, 1000 requests, test seeds 0 to 7: random -254,
    `least_request` -54, `jsq` -46, best tuned score (`linear_score_tuned`) -32.6, `zoo/routing` -33.1. A clairvoyant
    search gains 1 % over the best tuned score (one episode); a relaxation bounds any policy at a third of its cost.

    ## Arguments

    See `envs.routing.config.RoutingConfig`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are `cluster.engine=""`.
    * v0: first release.
    """

    core: RoutingEpisode
    _batch: RoutingBatch
    config_class = RoutingConfig
    episode_class = RoutingEpisode
    batch_class = RoutingBatch
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands = (Dispatch, Reject, Defer)

    def _checked(self, action: Any) -> Any:
        checked = super()._checked(action)
        check_admission(checked, self.config.admission)
        return checked

    def _place(self, action: int | Verdict | None) -> tuple[Observations, Outcome]:
        core, verdict = self.core, decode_action(action, self.config.num_rows)
        reasons = self._tell(action) if isinstance(action, Dispatch) else []
        chosen = encode_action(verdict, self.config.num_rows)
        observations, outcomes = self._batch.step(np.array([chosen], np.int64))
        if core.refused_actions > core.num_refused:
            core.num_refused = core.refused_actions
            reasons.append(refusal(chosen, self.config.num_rows))
        interval = outcomes.interval(0)
        outcome = Outcome(
            float(outcomes.rewards(self.config.objective)[0]),
            interval.terms(core.classes) | (interval.refusals() if self.config.admission else {}),
            float(outcomes.dt_s[0]),
            bool(outcomes.terminated[0]),
            bool(outcomes.truncated[0]),
            "; ".join(reasons),
        )
        return observations, outcome

    def _tell(self, dispatch: Dispatch) -> list[str]:
        """Gives the request its priority and the fleet its commands; returns why any were refused."""
        if dispatch.priority is not None:
            self.core.give_priority(dispatch.priority)
        receipts = [self.core.command(command) for command in dispatch.commands]
        self._batch.look_at(0)
        return [receipt.reason for receipt in receipts if not receipt.accepted]

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
            actions: Actions of the action space; None: to hold.
            score: What decides afterwards.
            most_decisions: Decisions after which a fork is rolled no further.
        """
        first = np.array([self._batch.hold if action is None else action for action in actions], np.int64)
        forever = np.full(len(actions), np.inf)
        outcomes, _ = self._batch.roll_branches([0] * len(actions), first, score, forever, most_decisions)
        return outcomes.rewards(self.config.objective)
