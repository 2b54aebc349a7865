"""Pictures of a fleet that is scaled: the instances of each endpoint, and load and capacity over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.action import LEVERS
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState, InstanceStatus
from serving_gym.envs.base.drawing.boxes import (
    Engine,
    Grain,
    divide,
    draw_engine,
    draw_gateway,
    draw_legend,
    grain_of,
)
from serving_gym.envs.base.drawing.canvas import (
    BLACK,
    FAINT,
    GREEN,
    GREY,
    NORMAL,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    SMALL,
    Area,
    Canvas,
)
from serving_gym.envs.base.drawing.timeline import Curve, Plot, Timeline, format_number, nice
from serving_gym.envs.base.render import BaseRenderer, level
from serving_gym.envs.interface.scaling import ScaleChange
from serving_gym.envs.interface.state import TOTALS

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_RATE_OVER_S = 300.0
_NOTES = {InstanceStatus.STARTING: "starts", InstanceStatus.DRAINING: "drains"}


class Renderer(BaseRenderer[AutoscalingState]):
    """Draws a fleet."""

    def title(self) -> str:
        """Models, machines and regions of the fleet."""
        spec = self.episode.spec
        regions = "" if len(spec.regions) == 1 else f", {len(spec.regions)} regions"
        machines = ", ".join(name.removeprefix("1x") for name in spec.gpus)
        models = ", ".join(spec.models) if len(spec.models) <= 2 else f"{len(spec.models)} models"
        return f"Autoscaling: {models} on {machines}{regions}"

    def describe(self, before: AutoscalingState, action: Any) -> str:
        """By how many instances each endpoint changes."""
        wanted = self._wanted(action)
        parts = []
        for own, change in zip(before.endpoints, wanted, strict=True):
            if change:
                where = "" if len(wanted) == 1 else f" {own.endpoint.model} in {own.endpoint.region}"
                parts.append(f"{change:+d}{where}")
        now = sum(len(own.present) for own in before.endpoints)
        return f"{', '.join(parts)} instances" if parts else f"keep {now} instances"

    def _wanted(self, action: Any) -> list[int]:
        """(E,), change of the number of instances of each endpoint that an action asks for."""
        spec = self.episode.spec
        if isinstance(action, np.ndarray):
            return [int(entry) - spec.max_change for entry in action.reshape(-1, LEVERS)[:, 0]]
        changes = [change for change in action or () if isinstance(change, ScaleChange)]
        return [
            sum(change.signed for change in changes if change.endpoint == endpoint)
            for endpoint in spec.endpoints
        ]

    def text(self) -> str:
        """The fleet now, one line an endpoint."""
        state = self.state
        vacant = ", ".join(f"{region} {int(count.sum())}" for region, count in state.vacant.items())
        lines = [f"{_weekday(state)}  vacant machines: {vacant}"]
        for own in state.endpoints:
            usage = _usage(own)
            draining = len(own.with_status(InstanceStatus.DRAINING))
            lines.append(
                f"  {own.endpoint.model:<16} {own.endpoint.region:<10} running {len(own.running):2d} "
                f"starting {len(own.starting):2d} draining {draining:2d} spot {int(own.spot.sum()):2d}  "
                f"KV {usage:4.0%} {level(usage)}  waiting {_waiting(own):5d} "
                f"queued {own.niw_queued:6d}  {_tokens_per_s(own, _RATE_OVER_S):8.0f} tokens/s"
            )
        return "\n".join(lines)

    # -- over time -----------------------------------------------------------------------------------------------------

    def totals(self, state: AutoscalingState) -> NDArray[np.float64]:
        """(classes, len(TOTALS)), counted since the episode began."""
        totals: NDArray[np.float64] = self.episode.simulator.world.stats[:, : len(TOTALS)]
        return totals

    def _scales(self) -> tuple[Timeline, float]:
        """The time axis, and the top of the scale of tokens: what the fleet can serve at its largest."""
        spec = self.episode.spec
        rows = [spec.models.index(endpoint.model) for endpoint in spec.endpoints]
        places = np.array([own.max() for own in spec.capacity_tps[rows]]) * self._num_places()
        return Timeline(1.03 * self.episode.config.episode_s), nice(float(places.sum()))

    def _num_places(self) -> NDArray[np.int64]:
        """(E,), most instances of each endpoint."""
        spec = self.episode.spec
        if spec.places is None:
            return np.full(len(spec.endpoints), spec.max_instances)
        return np.asarray(spec.places.sum(axis=1), np.int64)

    def gauges(self, state: AutoscalingState) -> dict[str, float]:
        """Prompt tokens that come, and that running instances can serve; instances by status."""
        since_s = state.now_s - (0.0 if self.before is None else self.before.now_s)
        demand = np.array([_tokens_per_s(own, since_s) for own in state.endpoints])
        capacity = np.array([self._capacity_tps(own) for own in state.endpoints])
        loads = demand / np.maximum(capacity, 1e-9)
        return {
            "demand": float(demand.sum()),
            "capacity": float(capacity.sum()),
            "fullest": float(loads.max()),
            "mean": float(loads.mean()),
            "running": float(sum(len(own.running) for own in state.endpoints)),
            "starting": float(sum(len(own.starting) for own in state.endpoints)),
            "spot": float(sum(own.spot.sum() for own in state.endpoints)),
        }

    def _capacity_tps(self, own: EndpointState) -> float:
        """Prompt tokens/s that the running instances of an endpoint can serve."""
        spec = self.episode.spec
        of_kinds = spec.capacity_tps[spec.models.index(own.endpoint.model)]
        return float(of_kinds[own.running["gpu"]].sum())

    def _load_plot(self) -> Plot:
        """Load and capacity of one endpoint, or the load over the capacity of several."""
        per = self.timeline.per
        if len(self.episode.spec.endpoints) == 1:
            load = Curve("interactive load", per("demand", "seconds"), SKY, filled=True)
            capacity = Curve("capacity of running instances", per("capacity", "seconds"), BLACK)
            return Plot("prompt tokens/s", (load, capacity), 0.0, self._peak_rps)
        fullest = Curve("fullest endpoint", per("fullest", "seconds"), PURPLE)
        mean = Curve("mean", per("mean", "seconds"), BLACK)
        return Plot("interactive load / capacity", (fullest, mean), 0.001, 10.0, log=True, limit=1.0)

    def plots(self) -> Sequence[Plot]:
        """Load and capacity, instances, and latency."""
        per = self.timeline.per
        instances = (
            Curve("running", per("running", "seconds"), GREEN),
            Curve("starting", per("starting", "seconds"), ORANGE),
            Curve("spot", per("spot", "seconds"), PURPLE),
        )
        return (
            self._load_plot(),
            Plot("instances (fewer are cheaper)", instances, 0.0, float(self._num_places().sum())),
            super().plots()[-1],
        )

    # -- picture -------------------------------------------------------------------------------------------------------

    def draw(self, canvas: Canvas, area: Area) -> None:
        """A row of instances for each endpoint."""
        state, field = self.state, divide(area)
        number = len(state.endpoints)
        columns = 1 if number <= 4 else 2 if number <= 10 else 3
        top = field.boxes._replace(y=field.boxes.y - 12, height=field.boxes.height + 12)
        cells = top.grid(columns, -(-number // columns), 8)[:number]
        slots = [
            _slots(cell._replace(y=cell.y + 15, height=cell.height - 15), int(most))
            for cell, most in zip(cells, self._num_places(), strict=True)
        ]
        smallest = min((own[0] for own in slots if own), key=lambda slot: slot.width * slot.height)
        most_seqs = max(group.replica.max_num_seqs for group in self.episode.config.cluster.groups)
        grain = grain_of(smallest, most_seqs)
        held = sum(own.num_held for own in state.endpoints)
        vacant = [(f"{int(count.sum())} vacant in {region}", GREY) for region, count in state.vacant.items()]
        if len(vacant) == 1:
            vacant = [(f"{int(next(iter(state.vacant.values())).sum())} machines vacant", GREY)]
        lines = [*vacant[:6], (_weekday(state), BLACK), self.arrival_line()]
        draw_gateway(canvas, field.gateway, "gateway", held, grain, lines)
        for place, (own, cell) in enumerate(zip(state.endpoints, cells, strict=True)):
            self._draw_endpoint(canvas, cell, own, slots[place], place, grain)
        note = "" if grain else "box: instance, hatched: starts or drains"
        draw_legend(canvas, field.legend, grain, [(PURPLE, "spot (leased out)")], note)

    def _draw_endpoint(
        self,
        canvas: Canvas,
        area: Area,
        own: EndpointState,
        slots: list[Area],
        number: int,
        grain: Grain | None,
    ) -> None:
        """An endpoint: its name and load, and its instances in their places."""
        queue = f"  {format_number(own.niw_queued)} in queue manager" if own.niw_queued else ""
        waiting = f"  {_waiting(own)} waiting" if _waiting(own) else ""
        load = f"{format_number(_tokens_per_s(own, _RATE_OVER_S))} tok/s{waiting}{queue}"
        used = canvas.text(area.right, area.y, load, SMALL, GREY, "ra", room=area.width * 0.6)
        regions = len(self.episode.spec.regions) > 1
        name = f"{own.endpoint.model} {own.endpoint.region}" if regions else own.endpoint.model
        room = area.width - used - 6
        size = NORMAL if canvas.text_width(name, NORMAL, True) <= room else SMALL
        canvas.text(area.x, area.y, name, size, bold=True, room=room)
        places = self.episode.simulator.layout.places(number)
        at = {int(row["place"]): row for row in own.instances}
        free = [slot for place, slot in zip(places, slots, strict=True) if int(place) not in at]
        for slot in free:
            canvas.rect(slot, FAINT, PALE)
        spot = int(own.spot.sum())
        for slot in free[len(free) - spot :] if spot else ():
            canvas.rect(slot, None, PURPLE, 2.0)
            if slot.width >= 30:
                canvas.text(slot.x + slot.width / 2, slot.y + slot.height / 2, "spot", SMALL, anchor="mm")
        for i, (place, slot) in enumerate(zip(places, slots, strict=True)):
            if int(place) in at:
                draw_engine(canvas, slot, self._engine(i, at[int(place)]), grain)

    def _engine(self, number: int, row: np.void) -> Engine:
        status = InstanceStatus(int(row["status"]))
        gpus = self.episode.spec.gpus
        kind = f" {gpus[row['gpu']]}" if len(gpus) > 1 else ""
        fresh = self.before is not None and row["since_s"] >= self.before.now_s
        return Engine(
            f"{number}{kind}",
            int(row["num_running"]),
            int(row["num_waiting"]),
            float(row["kv_used_tokens"]) / max(int(row["kv_capacity_tokens"]), 1),
            _NOTES.get(status, ""),
            status is InstanceStatus.RUNNING,
            fresh and status is not InstanceStatus.RUNNING,
        )


def _slots(area: Area, number: int) -> list[Area]:
    """Places of instances in the area of an endpoint, as near to squares as they fit."""
    rows = max(1, round((number * area.height / max(area.width, 1.0)) ** 0.5))
    columns = -(-number // rows)
    return area.grid(columns, -(-number // columns), 3)[:number]


def _usage(own: EndpointState) -> float:
    usage = own.utilization()
    return usage if np.isfinite(usage) else 0.0


def _waiting(own: EndpointState) -> int:
    """Interactive requests that wait, those at the gateway included."""
    return int(own.instances["num_waiting"].sum()) + own.num_held


def _tokens_per_s(own: EndpointState, over_s: float) -> float:
    """Rate of interactive prompt tokens over the last seconds."""
    if over_s <= 0:
        return 0.0
    traffic = own.recent if over_s <= own.recent.bin_s * len(own.recent) else own.history
    past = traffic.last(over_s)
    return float(past["input_tokens"].sum()) / max(len(past) * traffic.bin_s, 1e-9)


def _weekday(state: AutoscalingState) -> str:
    """Day of the week and time of day."""
    day, hour = divmod(state.clock_s / 3600.0, 24)
    return f"{_DAYS[int(day) % 7]} {int(hour):02d}:{int(hour % 1 * 60):02d}"
