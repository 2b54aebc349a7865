"""A simulated fleet as its control plane knows it: places, endpoints and how long requests may be, without commands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.fleet import FleetSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.body import Body
from serving_gym.envs.simulator.fleet.build import Fleet, build_fleet
from serving_gym.envs.workload.schema import Workload


class Places(Body):
    """The places of a simulated fleet.

    A request comes from a region; where that has no place for its model but another within reach has, it waits until
    a policy sends it there. Built-in routers keep within the region.

    Attributes:
        endpoints: Model and region of each endpoint: the fleet's, and behind them those without places, from which
            the workload has requests.

    Args:
        spec: The fleet.
        slos: SLO of each request class, in the order of the workload's classes.
        trigger_classes: Classes whose arrival stops `advance` so that a decision can be taken.

    Raises:
        ValueError: the spec names something unknown, or a model does not fit its GPUs.
    """

    def __init__(self, spec: FleetSpec, slos: tuple[SLO, ...], trigger_classes: tuple[int, ...] = ()) -> None:
        self.spec = spec
        self.fleet: Fleet = build_fleet(spec, slos)
        self.endpoints = self.fleet.endpoints
        super().__init__(spec, self.fleet.tables, slos, trigger_classes)

    def kind_of(self, place: int, slow_down: float = 1.0) -> int:
        """Row of the tables for a place whose iterations take `slow_down` times as long as otherwise in the episode."""
        return self.fleet.kind(place, self.factors.iteration_of(self.fleet.group_numbers[place]) * slow_down)

    def endpoints_of(self, workload: Workload) -> NDArray[np.int32]:
        """Endpoint of each request, (N,): row of `endpoints`.

        Raises:
            ValueError: the workload asks for a model that the fleet has no place for within reach, or names a region
                without such a place that the workload of `reset` did not.
        """
        table = self.endpoint_table(workload.models, workload.regions)
        endpoint = np.asarray(table[workload.model_id, workload.region_id], np.int32)
        if len(workload) and endpoint.min() < 0:
            row = int(np.argmin(endpoint))
            raise ValueError(
                f"workload {workload.name!r}: row {row} asks for model {workload.models[workload.model_id[row]]!r} in "
                f"region {workload.regions[workload.region_id[row]]!r}, which must name one endpoint of the fleet: "
                f"{', '.join(f'{model} in {region}' for model, region in self.fleet.endpoints)}; or fleet.network "
                "must lead from that region to one of them"
            )
        return endpoint

    def endpoint_table(self, models: Sequence[str], regions: Sequence[str]) -> NDArray[np.int32]:
        """(models, regions), row of `endpoints` that requests for a model from a region belong to; -1: no one row."""
        table = np.full((len(models), len(regions)), -1, np.int32)
        own = len(self.fleet.endpoints)
        for m, model in enumerate(models):
            for r, region in enumerate(regions):
                matching = [
                    number
                    for number, endpoint in enumerate(self.endpoints)
                    if model in ("", endpoint[0]) and region in ("", endpoint[1])
                ]
                matching = [number for number in matching if number < own] or matching
                if len(matching) == 1:
                    table[m, r] = matching[0]
        return table

    def within_reach(self, model: str, region: str) -> list[int]:
        """The fleet's endpoints that a request for a model from a region can be sent to."""
        return [
            number
            for number, (served, there) in enumerate(self.fleet.endpoints)
            if served == model and self.spec.round_trip_s(region, there) is not None
        ]

    def set_request_limits(self, endpoint: int) -> None:
        """Sets how long requests may become, as places of an endpoint have got other KV pools."""
        blocks = self.world.engines["capacity_blocks"]
        for number in self.served_by(endpoint):
            self.world.endpoints["max_request_tokens"][number] = self.request_limit(number, blocks)

    def served_by(self, endpoint: int) -> list[int]:
        """An endpoint of the fleet, and those without places whose requests may be sent to it."""
        others = range(len(self.fleet.endpoints), len(self.endpoints))
        return [
            endpoint,
            *(number for number in others if endpoint in self.within_reach(*self.endpoints[number])),
        ]

    def request_limit(self, endpoint: int, blocks: NDArray[np.int64]) -> int:
        """Longest request of an endpoint, tokens; `blocks` is (places,) KV blocks of each.

        Those of a region that has places for the model are measured by these.
        """
        own = endpoint < len(self.fleet.endpoints)
        within_reach = [endpoint] if own else self.within_reach(*self.endpoints[endpoint])
        return max(self.fleet.max_request_tokens(number, blocks) for number in within_reach)
