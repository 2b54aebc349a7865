"""Chiron's autoscaler of instances, as SageServe configures it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.chiron.backpressure import batch_waiting_s, interactive_backpressure
from serving_gym.baselines.common.autoscaler import Autoscaler
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.baselines.sageserve.spot import Stock, bring_in, give_away
from serving_gym.calibration.fields import check_not_negative, check_positive, check_within
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState, InstanceStatus
from serving_gym.envs.interface.scaling import Pool, ScaleChange


@dataclass(frozen=True)
class ChironConfig(Constants):
    """Constants of `ChironPolicy`.

    Attributes:
        theta: Interactive backpressure above which instances are added, and up to which some are taken away. Source:
            SageServe, section 7.1 (0.6).
        interactive_instances: Of an endpoint at the start. Source: SageServe, section 7.1 (10).
        mixed_instances: Source: SageServe, section 7.1 (5).
        batch_instances: Source: SageServe, section 7.1 (5).
        batch_deadline_s: Within which batch requests are to be served. Source: SageServe's public code, its deadline of
            non-interactive requests (24 h).
        prompt_s: Time of a batch request's prompt, by profile. Source: SageServe's public configuration (10).
        decode_tps: Tokens/s of a batch instance, by profile. Source: SageServe's public configuration (100).
        fewest: Fewest instances of the interactive and of the mixed pool. Source: SageServe, section 7.1: a deployment
            has no fewer than two. Batch instances go one by one until none is left (public code).
        period_s: Between two looks, seconds; None: as often as the environment asks. Source: SageServe's public code
            looks whenever a request arrives and lets no scaling begin while one is in progress; here every 15 s, the
            cool-down that section 7.1 gives the reactive heuristic of the same code.
    """

    theta: float = tunable(0.6, 0.2, 0.95)
    interactive_instances: int = 10
    mixed_instances: int = 5
    batch_instances: int = 5
    batch_deadline_s: float = 24 * 3600.0
    prompt_s: float = 10.0
    decode_tps: float = 100.0
    fewest: int = 2
    period_s: float | None = 15.0

    def __post_init__(self) -> None:
        check_within(self, "(0, 1]", "theta")
        check_not_negative(
            self, "interactive_instances", "mixed_instances", "batch_instances", "fewest", "prompt_s"
        )
        check_positive(self, "batch_deadline_s", "decode_tps", "period_s")

    @property
    def at_start(self) -> dict[Pool, int]:
        """Instances of each pool that an endpoint has at the start."""
        return {
            Pool.INTERACTIVE: self.interactive_instances,
            Pool.MIXED: self.mixed_instances,
            Pool.BATCH: self.batch_instances,
        }


class ChironPolicy(Autoscaler, Configured[ChironConfig]):
    """Scales interactive and mixed instances together by how many are busy, batch instances by their deadline.

    Above Theta one interactive and one mixed instance are added, otherwise one of each is taken away; batch instances
    are added while what waits would not be done in time, and taken away while nothing waits. A change is awaited before
    the next of the same pool (the public code scales nothing while a scaling is in progress). At the first decision the
    pools are brought to the size that they start with: what runs there already is taken for mixed instances.
    """

    name = "chiron"

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def begin(self) -> None:
        """Nothing has been set up."""
        self._set_up = False

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """Sets the pools up, then scales them."""
        stock = Stock.of(state)
        for endpoint in state.endpoints:
            if not self._set_up:
                yield from self._start(stock, endpoint)
                continue
            yield from self._interactive(stock, endpoint)
            yield from self._batch(stock, endpoint)
        self._set_up = True

    def _start(self, stock: Stock, endpoint: EndpointState) -> Iterable[ScaleChange]:
        for pool, wanted in self.config.at_start.items():
            missing = wanted - len(_of(endpoint, pool))
            if missing > 0:
                yield from bring_in(self.spec, stock, endpoint.endpoint, missing, pool=pool)
            elif missing < 0:
                yield from give_away(endpoint, -missing, _of(endpoint, pool))

    def _interactive(self, stock: Stock, endpoint: EndpointState) -> Iterable[ScaleChange]:
        pressure = interactive_backpressure(endpoint.running)
        for pool in (Pool.INTERACTIVE, Pool.MIXED):
            rows = _of(endpoint, pool)
            if _changing(endpoint, pool):
                continue
            if pressure > self.config.theta:
                if len(endpoint.present) < self.spec.max_instances:
                    yield from bring_in(self.spec, stock, endpoint.endpoint, 1, pool=pool)
            elif len(rows) > self.config.fewest:
                yield from give_away(endpoint, 1, rows)

    def _batch(self, stock: Stock, endpoint: EndpointState) -> Iterable[ScaleChange]:
        rows = _of(endpoint, Pool.BATCH)
        if _changing(endpoint, Pool.BATCH):
            return
        waiting_s = batch_waiting_s(
            endpoint.niw_queued,
            endpoint.niw_queued_tokens,
            len(rows),
            self.config.prompt_s,
            self.config.decode_tps,
        )
        if waiting_s > self.config.batch_deadline_s:
            if len(endpoint.present) < self.spec.max_instances:
                yield from bring_in(self.spec, stock, endpoint.endpoint, 1, pool=Pool.BATCH)
        elif not endpoint.niw_queued and len(rows):
            yield from give_away(endpoint, 1, rows)


def _of(endpoint: EndpointState, pool: Pool) -> NDArray[np.void]:
    """Rows of a pool that serve or are about to."""
    return endpoint.present[endpoint.present["pool"] == pool]


def _changing(endpoint: EndpointState, pool: Pool) -> bool:
    """Whether instances of a pool are coming or going."""
    rows = endpoint.with_status(InstanceStatus.STARTING, InstanceStatus.DRAINING)
    return bool((rows["pool"] == pool).any())
