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
from serving_gym.envs.routing.features import ADMISSION, PARTS
from serving_gym.envs.routing.render import Renderer
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.routing.state import Defer, Dispatch, Reject, RoutingState, Verdict
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore


class RoutingEnv(PlacementEnv[RoutingConfig, RoutingState]):
    """Routes each request to one replica of a fleet of LLM engines. `Serving/Routing-v1`.

    A router stands in front of a fleet whose replicas are identical, or differ in GPU, size and model. At every arrival
    the policy sends the request to one replica, where it stays, or holds it in the router's queue. The policy observes
    what a real router can observe: its own record of requests sent and tokens received, gauges as of the last poll, and
    a prediction of the output length. `baselines` has PreServe's router (arXiv 2504.03702) and the routers of
    production systems.

    ## Action space

    `Discrete(places + 1)`, where a place is one replica of the fleet; with `admission=True` `Discrete(places + 3)`.

    | action | command | does |
    |---|---|---|
    | 0 to `places` - 1 | `Dispatch` | sends the request to that replica |
    | `places` | `None` | holds it in the router's queue |
    | `places` + 1 | `Reject` | refuses it: its client gets an error at once (HTTP 429) |
    | `places` + 2 | `Defer` | puts it behind all others of the queue, for good; possible once |

    Held requests are offered again at the next retry, `retry_s` after the first of them was held, in order of priority,
    then of age. If one of them is held once more, the others of its class, model and region wait for the following
    retry. When `queue_capacity` requests are held or deferred, a further hold refuses the request. Replicas that are
    out of service, serve another model or cannot hold the request are masked (`action_masks()`, `info["action_mask"]`).
    A masked action counts in `info["num_refused"]` and holds the request. `step` also takes None (hold) and the
    commands of the table; a `Dispatch` can change the request's priority and send commands to the fleet, for example
    `Migrate`.

    ## Observation space

    A dictionary of float32 arrays in [0, 64]. With `max_places`, rows without a place are zero. The observation does
    not contain the true output length. Short and long averages are exponential, with the time constants
    `scales.short_s` and `scales.long_s`.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the time to the next decision:

    | term | is |
    |---|---|
    | `latency` | minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO |
    | `ttft_attainment/CLASS`, `tpot_attainment/CLASS` | minus the number of SLO misses |
    | `goodput` | requests finished within both SLOs |
    | `abandoned` | minus the number of requests refused, failed or left unfinished; each also misses both SLOs |
    | `refused/CLASS` | minus the number of requests refused, with `admission=True` |

    `objective.class_weights` multiplies the SLO misses and refusals of a class. The cost of a decision is charged when
    it arises, often many decisions later. `info["dt"]` is the time to the next decision, seconds; a semi-Markov agent
    discounts by it.

    ## Start and end

    An episode begins with an empty fleet and the first arrival. It is terminated when every request has been served,
    refused or lost. It is truncated `drain_limit_s` after the last arrival; unfinished requests then count as missed
    and abandoned.

    ## The default task

    Llama-3.1-8B on two A100, one H100 and a pair of H100 (`cluster=fleet_mixed_x4`), Azure's chat at 55 requests/s
    (`workload=routing_chat`), close to what the four engines can serve. The rate belongs to that workload;
    `workload=NAME` takes the rate of NAME.

    ## What there is to gain

    A clairvoyant search gains 1 % over the best tuned score (one episode of version 0); a relaxation bounds any policy
    at a third of its cost.

    ## Arguments

    Often changed: `gauge_interval_s` (age of gauges), `prediction` (predictor of output lengths), `faults` (crashes and
    slow engines), `admission`.

    ## Version history

    * v1: latencies are those that clients see, and engines are `vllm-0.24`; those of v0 are `cluster.engine=""`.
    * v0: first release.
    """

    core: RoutingEpisode
    _batch: RoutingBatch
    config_class = RoutingConfig
    episode_class = RoutingEpisode
    batch_class = RoutingBatch
    parts = (*PARTS, ADMISSION)
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
