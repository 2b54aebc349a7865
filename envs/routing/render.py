"""Pictures of a fleet behind a router: the engines, the request that was sent last, and where it went."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from serving_gym.envs.base.drawing.boxes import (
    LANE,
    Engine,
    divide,
    draw_engine,
    draw_gateway,
    draw_lanes,
    draw_legend,
    grain_of,
)
from serving_gym.envs.base.drawing.canvas import BLACK, GREY, PURPLE, Area, Canvas
from serving_gym.envs.base.drawing.timeline import Curve, Plot
from serving_gym.envs.base.render import BaseRenderer, level
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.routing.action import decode_action
from serving_gym.envs.routing.state import Defer, Dispatch, Reject, RoutingState

_TAKES = (EngineStatus.ACTIVE, EngineStatus.SPECULATIVE)
_FEW = 16  # engines to which arrows are drawn
_ASPECT = 0.62  # height of a box over its width that the grid aims at


class Renderer(BaseRenderer[RoutingState]):
    """Draws a fleet."""

    def title(self) -> str:
        """Engines and models of the fleet."""
        engines = self.episode.engines
        gpus = ", ".join(f"{engines.gpus.count(gpu)} × {gpu}" for gpu in dict.fromkeys(engines.gpus))
        return f"Routing: {gpus}, {', '.join(dict.fromkeys(engines.models))}"

    def describe(self, before: RoutingState, action: Any) -> str:
        """The request that was decided about, and where it went."""
        request = before.request
        if request is None:
            return "none"
        verdict = self._verdict(action)
        if isinstance(verdict, Dispatch):
            what = "hold" if verdict.place is None else f"send to engine {verdict.place}"
        else:
            what = "refuse" if isinstance(verdict, Reject) else "defer"
        return f"{what} request {request.index} ({request.input_tokens} prompt tokens)"

    def _verdict(self, action: Any) -> Any:
        """The action spelled out; what is no verdict (no decision, on live servers) holds."""
        if isinstance(action, int | np.integer):
            return decode_action(int(action), self.episode.config.num_rows)
        return action if isinstance(action, Dispatch | Reject | Defer) else Dispatch(None)

    def text(self) -> str:
        """The fleet now, one line a place."""
        state, engines = self.state, self.episode.engines
        in_flight = self._in_flight(state)
        lines = [f"t={state.now_s:8.1f} s  held {state.num_held}"]
        for place, row in enumerate(state.engines):
            status, kv = EngineStatus(int(row["status"])).name.lower(), _kv(row)
            lines.append(
                f"  {place:3d} {engines.models[place]} on {engines.num_gpus[place]} x "
                f"{engines.gpus[place]}  {status:<9} in flight {in_flight[place]:4d}  "
                f"waiting {int(row['num_waiting']):4d}  KV {kv:4.0%} {level(kv)}"
            )
        return "\n".join(lines)

    @staticmethod
    def _in_flight(state: RoutingState) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(P,), requests that each engine has been sent and has not answered to the end."""
        return np.bincount(state.in_flight["place"], minlength=len(state.engines))

    def gauges(self, state: RoutingState) -> dict[str, float]:
        """Requests in flight of the engine that has the most, and of all on average."""
        count = self._in_flight(state)
        serving = count[np.isin(state.engines["status"], _TAKES)]
        serving = serving if len(serving) else count
        return {"most": float(serving.max()), "mean": float(serving.mean())}

    def own_plots(self) -> tuple[Plot, ...]:
        """How evenly requests are spread."""
        timeline = self.timeline
        curves = (
            Curve("fullest engine", timeline.per("most", "seconds"), PURPLE),
            Curve("mean", timeline.per("mean", "seconds"), BLACK),
        )
        most = float(self.episode.engines.max_num_seqs.max())
        return (
            Plot("in flight, requests an engine", curves, 0.1, 10 ** math.ceil(math.log10(most)), log=True),
        )

    def draw(self, canvas: Canvas, area: Area) -> None:
        """The engines in a grid, and the way of the last request."""
        state, field = self.state, divide(area)
        number = len(state.engines)
        columns = _columns(field.boxes, number)
        rows = -(-number // columns)
        few = number <= _FEW
        lane, gap = (LANE, 6.0) if few else (7.0, 0.0)
        below = field.boxes._replace(y=field.boxes.y - lane, height=field.boxes.height + lane)
        cells = [
            cell._replace(y=cell.y + lane, height=cell.height - lane, width=cell.width - 6 + gap)
            for cell in below.grid(columns, rows, gap)[:number]
        ]
        grain = grain_of(cells[0], int(self.episode.engines.max_num_seqs.max()))
        age_s = state.now_s - state.gauges_s
        lines = [self.arrival_line()] + ([(f"gauges {age_s:.1f} s old", GREY)] if age_s >= 0.05 else [])
        draw_gateway(canvas, field.gateway, "router", state.num_held, grain, lines)
        chosen = self._chosen()
        boxes = []
        for place, (row, box) in enumerate(zip(state.engines, cells, strict=True)):
            takes = EngineStatus(int(row["status"])) in _TAKES
            draw_engine(canvas, box, self._engine(place, row, takes, place == chosen, few), grain)
            boxes.append((box, takes and few, place == chosen))
        in_rows = [boxes[i : i + columns] for i in range(0, number, columns)]
        draw_lanes(canvas, field.gateway, in_rows, [row[0][0].y - lane * 0.6 for row in in_rows])
        draw_legend(canvas, field.legend, grain)

    def _engine(self, place: int, row: np.void, takes: bool, chosen: bool, named: bool) -> Engine:
        engines = self.episode.engines
        gpus = int(engines.num_gpus[place])
        return Engine(
            f"{place}" + (f": {engines.gpus[place]}" + (f" × {gpus}" if gpus > 1 else "") if named else ""),
            int(row["num_running"]),
            int(row["num_waiting"]),
            _kv(row),
            "" if takes else EngineStatus(int(row["status"])).name.lower(),
            takes,
            chosen,
        )

    def _chosen(self) -> int | None:
        """Place that the last request was sent to."""
        verdict = self._verdict(self.action)
        return verdict.place if isinstance(verdict, Dispatch) and not self.refused else None


def _kv(row: np.void) -> float:
    return float(row["kv_used_blocks"]) / max(1, int(row["kv_capacity_blocks"]))


def _columns(area: Area, number: int) -> int:
    """Columns of a grid of boxes that are wider than high, with few places left empty."""
    wanted = math.sqrt(number * _ASPECT * area.width / max(area.height, 1.0))
    near = [columns for columns in range(1, number + 1) if abs(columns - wanted) <= 1.0 + wanted / 10] or [
        number
    ]
    return min(near, key=lambda columns: (-(-number // columns) * columns - number, abs(columns - wanted)))
