"""Pictures of nodes that are shared: the memory of each, with the instances in it and their requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.drawing.boxes import Grain, divide, draw_gateway, draw_legend
from serving_gym.envs.base.drawing.canvas import (
    ACTION,
    BLACK,
    FAINT,
    GREEN,
    GREY,
    KV,
    NORMAL,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    SMALL,
    WHITE,
    Area,
    Canvas,
)
from serving_gym.envs.base.drawing.timeline import Curve, Plot
from serving_gym.envs.base.render import BaseRenderer, level
from serving_gym.envs.interface.sharing import Event, InstanceStatus
from serving_gym.envs.sharing.state import SharingState

_GB = 1e9
_BUSY = {
    InstanceStatus.LOADING: "loads",
    InstanceStatus.RESIZING: "resizes",
    InstanceStatus.UNLOADING: "unloads",
}
_KINDS = (PURPLE, GREEN, ORANGE, SKY)  # colours of the kinds of node in the plot


class Renderer(BaseRenderer[SharingState]):
    """Draws shared nodes."""

    def reset(self, state: SharingState) -> None:
        """Begins an episode with its first state."""
        super().reset(state)
        self.placed: int | None = None

    def record(self, state: SharingState, action: Any, reward: float = 0.0, refused: str = "") -> None:
        """Takes note of a decision, and of where the request that it was about is now."""
        offered = self._offer(self.state)
        rows = np.flatnonzero(state.requests["index"] == (-1 if offered is None else offered))
        self.placed = int(state.requests["instance"][rows[0]]) if len(rows) else None
        super().record(state, action, reward, refused)

    @staticmethod
    def _offer(state: SharingState) -> int | None:
        """Row of the workload of the request that a state offers."""
        return int(state.requests[state.offered]["index"]) if state.offered >= 0 else None

    def title(self) -> str:
        """The nodes and the number of models."""
        nodes = ", ".join(f"{node.count} × {node.hardware}" for node in self.episode.config.cluster.nodes)
        return f"Sharing: {len(self.episode.setting.models)} models on {nodes}"

    def describe(self, before: SharingState, action: Any) -> str:
        """The request that was decided about, and where it went."""
        if before.event is not Event.PLACEMENT:
            return f"at {before.event.name.lower()} event"
        request = before.requests[before.offered]
        what = f"request of model {request['model']} ({request['input_tokens']} prompt tokens)"
        if self.placed is None or self.placed < 0:
            return f"hold {what}"
        node, _ = divmod(self.placed, self.episode.setting.slots_per_node)
        fresh = before.instances["status"][self.placed] == InstanceStatus.EMPTY
        return f"{what} to {'a new' if fresh else 'an'} instance on {self._name(node)}"

    def _name(self, node: int) -> str:
        """Name of a node: its kind and its number among those of its kind."""
        kinds = self.episode.setting.node_kinds
        return f"{self.episode.setting.kinds[kinds[node]].upper()} {int((kinds[:node] == kinds[node]).sum())}"

    def text(self) -> str:
        """The nodes now, and the instances on each."""
        state, setting = self.state, self.episode.setting
        shares = self._held(state)
        lines = [f"t={state.now_s:8.1f} s  {state.event.name.lower()}  held {state.num_held}"]
        for n in range(setting.num_nodes):
            kind = setting.kinds[setting.node_kinds[n]]
            lines.append(f"  {kind} {n}  memory {shares[n]:4.0%} {level(float(shares[n]))}")
            for i in self._there(n):
                row = state.instances[i]
                status = InstanceStatus(int(row["status"])).name.lower()
                mark = "*" if state.nodes["at_work"][n] == i else " "
                lines.append(
                    f"   {mark}{setting.models[row['model']].name:<20} {status:<9} running {row['num_running']:3d}  "
                    f"waiting {row['num_waiting']:3d}  KV {row['kv_bytes'] / _GB:5.1f} GB"
                )
        return "\n".join(lines)

    @staticmethod
    def _held(state: SharingState) -> NDArray[np.float64]:
        """(N,), share of each node's memory in use."""
        return np.asarray(state.nodes["held_bytes"] / state.nodes["memory_bytes"], np.float64)

    def _there(self, node: int) -> list[int]:
        """Slots of a node that are not empty."""
        slots = self.episode.setting.slots_per_node
        own = range(node * slots, (node + 1) * slots)
        return [i for i in own if self.state.instances["status"][i] != InstanceStatus.EMPTY]

    def gauges(self, state: SharingState) -> dict[str, float]:
        """Nodes of each kind with instances."""
        setting = self.episode.setting
        used = state.nodes["num_instances"] > 0
        return {kind: float(used[setting.node_kinds == k].sum()) for k, kind in enumerate(setting.kinds)}

    def own_plots(self) -> tuple[Plot, ...]:
        """Nodes in use, which cost money."""
        setting, per = self.episode.setting, self.timeline.per
        curves = [
            Curve(f"{kind.upper()}s", per(kind, "seconds"), _KINDS[k % len(_KINDS)])
            for k, kind in enumerate(setting.kinds)
        ]
        most = int(np.bincount(setting.node_kinds).max())
        return (Plot("nodes in use (fewer are cheaper)", tuple(curves), 0.0, float(most)),)

    def draw(self, canvas: Canvas, area: Area) -> None:
        """The memory of each node, divided into instances."""
        state, setting, field = self.state, self.episode.setting, divide(area)
        lines = [self.arrival_line()]
        draw_gateway(canvas, field.gateway, "gateway", state.num_held, Grain(1, 8.0), lines)
        columns = min(2 if setting.num_nodes <= 16 else 4, setting.num_nodes)
        rows = -(-setting.num_nodes // columns)
        top = field.boxes._replace(y=field.boxes.y - 8, height=field.boxes.height + 8)
        cells = top.grid(columns, rows, 7)
        for node in range(setting.num_nodes):
            column, row = divmod(node, rows)
            self._draw_node(canvas, cells[row * columns + column], node)
        entries = ((SKY, "weights"), (PALE, "KV, empty"))
        draw_legend(canvas, field.legend, None, entries, "model: running + waiting, * computes")

    def _draw_node(self, canvas: Canvas, area: Area, node: int) -> None:
        """A node: its name, and a bar of its memory with a piece for each instance."""
        state = self.state
        row = state.nodes[node]
        there = self._there(node)
        chosen = self.placed is not None and self.placed in there
        memory = f"{row['held_bytes'] / _GB:.0f} of {row['memory_bytes'] / _GB:.0f} GB"
        used = canvas.text(area.right, area.y, memory, SMALL, GREY, "ra")
        name = self._name(node)
        canvas.text(
            area.x, area.y, name, NORMAL, BLACK if there else GREY, bold=True, room=area.width - used - 4
        )
        bar = Area(area.x, area.y + 14, area.width, area.height - 15)
        canvas.rect(bar, FAINT, ACTION if chosen else GREY, 2.0 if chosen else 1.0)
        inner, x = bar.inset(2), bar.x + 2
        for i in there:
            x += self._draw_instance(
                canvas, inner._replace(x=x), i, int(row["memory_bytes"]), row["at_work"] == i
            )

    def _draw_instance(self, canvas: Canvas, bar: Area, slot: int, memory: int, computes: bool) -> float:
        """An instance in its node's memory: weights, then KV pool; returns its width."""
        row, setting = self.state.instances[slot], self.episode.setting
        per_byte = bar.width / memory
        pool = max(int(row["kv_bytes"]), int(row["kv_target_bytes"]))
        weights = float(row["weights_bytes"]) * per_byte
        whole = weights + pool * per_byte
        piece = Area(bar.x, bar.y, whole, bar.height)
        used = int(row["kv_used_tokens"]) * setting.models[row["model"]].kv_bytes_per_token
        canvas.rect(piece, PALE)
        canvas.rect(piece._replace(width=weights), SKY)
        share = min(used / max(int(row["kv_bytes"]), 1), 1.0)
        canvas.rect(Area(piece.x + weights, piece.y, row["kv_bytes"] * per_byte * share, piece.height), KV)
        status = InstanceStatus(int(row["status"]))
        if status in _BUSY:
            canvas.hatched(piece, WHITE)
        marked = slot == self.placed
        canvas.rect(piece, None, ACTION if marked else WHITE, 2.5 if marked else 1.0)
        self._label(canvas, piece, row, _BUSY.get(status, ""), computes)
        return whole

    def _label(self, canvas: Canvas, piece: Area, row: np.void, busy: str, computes: bool) -> None:
        """Model and requests of an instance, on two lines where there is room."""
        star = "*" if computes else ""
        counts = f"{row['num_running']} + {row['num_waiting']}"
        name, room = f"{star}m{row['model']}", piece.width - 4
        middle = piece.x + piece.width / 2
        if piece.height >= 24:
            canvas.text(middle, piece.y + piece.height / 2 - 5.5, name, SMALL, BLACK, "mm", room=room)
            canvas.text(
                middle, piece.y + piece.height / 2 + 5.5, busy or counts, SMALL, BLACK, "mm", room=room
            )
        elif piece.height >= 10:
            canvas.text(
                middle, piece.y + piece.height / 2, f"{name}: {busy or counts}", SMALL, BLACK, "mm", room=room
            )
