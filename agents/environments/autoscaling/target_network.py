"""A network that says how many instances are wanted: for searches over parameters, of which it has few.

A number of instances that is wanted is linear in what is seen of an endpoint, loads counted in instances. Enough more
than there are must be wanted for one to come, and enough less for one to go; how much is enough is linear in the load.
All of it is once for loads that were calm in the last day and once for restless ones, with all shades between them; a
search on loads of one kind leaves the numbers of the other to chance.
Engines that are clearly slower than their profile says serve as much less, so that loads are as much more instances.
Instances come from vacant machines and leave them vacant; non-interactive requests are released as freely as before.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from gymnasium import spaces
from torch import nn

from serving_gym.agents.environments.spaces import entries
from serving_gym.agents.networks.networks import DecisionNetwork, Observation, Rows
from serving_gym.envs.autoscaling.action import LEVERS, MACHINE
from serving_gym.envs.autoscaling.config import AutoscalingScales
from serving_gym.envs.autoscaling.observation import ENDPOINT_FEATURES

_COLUMN = {name: number for number, name in enumerate(ENDPOINT_FEATURES)}
_SCALE = AutoscalingScales().instances
_LOADS = (
    "load_minute",
    "load_interval",
    "load_hour",
    "forecast_interval",
    "forecast_hour",
    "usual",
    "niw_load_hour",
)
_FEWER_CHANGES = 1e-3  # by which a smaller change is better where two do equally well

INPUTS = (
    "one",
    *_LOADS,  # over what an instance serves
    "root",  # of the load of the last interval: what is kept in reserve grows with it (Halfin and Whitt 1981)
    "busy",  # KV memory in use, in instances
    "running_requests",  # over the scale of requests
    "late",  # requests in ten that missed a promise
    "off_usual",  # by how much the load of the last hour differs from what is usual
    "off_hour",  # by how much that of the last interval differs from that of the last hour
)
BAND_INPUTS = ("one", "load_minute", "load_interval", "usual")
# Before any search: what one of twelve minutes of processor time, with bands of one number each, came to on
# experiment=autoscaling_day.
_BEGIN = {
    "one": 0.48,
    "load_minute": 0.40,
    "load_interval": 0.51,
    "forecast_interval": -0.05,
    "forecast_hour": -0.02,
    "usual": 0.54,
    "niw_load_hour": 0.10,
    "root": 0.11,
    "busy": -0.19,
    "running_requests": 0.09,
    "late": 0.01,
}
_BANDS = (0.37, 0.95)  # instances that must be wanted or superfluous for one to come or to go
# Unrest up to which loads are calm and from which on they are restless: days of workload=week have 0.09 to 0.17, of
# workload=tiers_swinging 0.28 to 0.38.
_CALM, _RESTLESS = 0.17, 0.25
# Slowness that is taken for noise, and from which on all of it counts: hours of engines that are as their profile says
# reach 1.12, those of engines that are a fifth slower begin at 1.20.
_NOISE, _SLOW = 1.12, 1.2
_IN_TEN = 10.0


class TargetNetwork(DecisionNetwork):
    """Scores of the levers of each endpoint, by the number of instances that is wanted there.

    Args:
        action: The action space: changes, sources and release levels of each endpoint.
    """

    pooled_size = 0

    def __init__(self, action: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.changes, self.ways, self.levels = entries(action)[:LEVERS]
        self.weights = nn.Parameter(torch.tensor([[_BEGIN.get(name, 0.0) for name in INPUTS]] * 2))
        self.bands = nn.Parameter(torch.zeros(2, len(BAND_INPUTS), len(_BANDS)))
        with torch.no_grad():
            self.bands[:, BAND_INPUTS.index("one")] = torch.tensor(_BANDS)

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """The rows of the endpoints as they are, and nothing of all together."""
        rows = observation["endpoints"]
        return (rows,), rows.new_zeros(len(rows), 0)

    def inputs(self, endpoints: torch.Tensor) -> torch.Tensor:
        """(batch, P, INPUTS), what the numbers are linear in.

        Args:
            endpoints: (batch, P, features).
        """
        loads = torch.expm1(endpoints[:, :, [_COLUMN[name] for name in _LOADS]]) * _pace(endpoints)
        running = _SCALE * torch.expm1(endpoints[:, :, _COLUMN["running"]])
        interval, hour, usual = (
            loads[:, :, _LOADS.index(name)] for name in ("load_interval", "load_hour", "usual")
        )
        others = (
            interval.sqrt(),
            endpoints[:, :, _COLUMN["kv_usage"]] * running,
            torch.expm1(endpoints[:, :, _COLUMN["running_requests"]]),
            _IN_TEN * endpoints[:, :, _COLUMN["late"]],
            (hour - usual).abs(),
            (interval - hour).abs(),
        )
        return torch.cat([torch.ones_like(loads[:, :, :1]), loads, torch.stack(others, dim=2)], dim=2)

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, entries of all levers, 1): minus what stays wanted or superfluous beyond the bands."""
        (endpoints,) = rows
        seen = self.inputs(endpoints)
        counts = torch.expm1(endpoints[:, :, [_COLUMN["running"], _COLUMN["starting"]]])
        restless = ((endpoints[:, :, _COLUMN["unrest"], None] - _CALM) / (_RESTLESS - _CALM)).clamp(0.0, 1.0)
        shares = torch.cat([1.0 - restless, restless], dim=2)
        gap = (shares * (seen @ self.weights.T)).sum(dim=2) - _SCALE * counts.sum(dim=2)
        most = self.changes // 2
        change = torch.arange(-most, most + 1, device=gap.device)
        left = gap.unsqueeze(2) - change
        of_band = seen[:, :, [INPUTS.index(name) for name in BAND_INPUTS]]
        bands = torch.relu(torch.einsum("bps,bpi,sio->bpo", shares, of_band, self.bands))
        up, down = bands.unsqueeze(2).unbind(dim=3)
        of_changes = -torch.relu(left - up) - torch.relu(-left - down) - _FEWER_CHANGES * change.abs()
        of_ways = torch.zeros(*gap.shape, self.ways)
        of_ways[:, :, MACHINE] = 1.0
        level = torch.linspace(0.0, 1.0, self.levels)
        of_levels = -(level - endpoints[:, :, _COLUMN["release_level"], None]).abs()
        return torch.cat([of_changes, of_ways, of_levels], dim=2).flatten(1).unsqueeze(2)

    def last_layers(self) -> Iterable[nn.Module]:
        """None: it begins as a rule that serves."""
        return ()


def _pace(endpoints: torch.Tensor) -> torch.Tensor:
    """(batch, P, 1), times as long as engines take for what they do; 1 where that may be noise.

    Args:
        endpoints: (batch, P, features).
    """
    slowness = endpoints[:, :, _COLUMN["slowness"], None]
    return 1.0 + ((slowness - _NOISE) / (_SLOW - _NOISE)).clamp(0.0, 1.0) * (slowness - 1.0)
