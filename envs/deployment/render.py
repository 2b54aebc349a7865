"""Pictures of a cluster that is cut into replicas: each over its GPUs, machine by machine."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from serving_gym.envs.base.drawing.boxes import (
    LANE,
    Engine,
    Grain,
    divide,
    draw_engine,
    draw_gateway,
    draw_lanes,
    draw_legend,
    grain_of,
)
from serving_gym.envs.base.drawing.canvas import (
    ACTION,
    FAINT,
    GREEN,
    GREY,
    PALE,
    PURPLE,
    SKY,
    SMALL,
    Area,
    Canvas,
)
from serving_gym.envs.base.drawing.timeline import Curve, Plot
from serving_gym.envs.base.render import BaseRenderer, level
from serving_gym.envs.deployment.state import DeploymentState
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.machines.cluster import Replica

_ROLE = {"mixed": "", "prefill": "P ", "decode": "D "}
_ROLE_COLOUR = {"prefill": SKY, "decode": PURPLE}


class Renderer(BaseRenderer[DeploymentState]):
    """Draws a cluster that is cut into replicas."""

    def title(self) -> str:
        """The cluster and its model."""
        spec = self.episode.config.cluster
        return f"Deployment: {spec.num_machines} × {spec.gpus_per_machine} {spec.gpu}, {spec.model}"

    def describe(self, before: DeploymentState, action: Any) -> str:
        """The replicas that were chosen."""
        now = self.state.deployment
        if before.deployment.replicas != now.replicas:
            return f"switch to {now}"
        same = before.shares.shape == self.state.shares.shape and np.allclose(
            before.shares, self.state.shares
        )
        return f"keep {now}" + ("" if same else ", new shares of requests")

    def text(self) -> str:
        """The cluster now, one line a replica."""
        state = self.state
        switch = "" if state.switch is None else "  draining" if state.switch.draining else "  switching"
        lines = [f"t={state.now_s:8.1f} s  {state.deployment}{switch}  pooled {state.num_pooled}"]
        for replica, row in zip(state.deployment.replicas, state.engines, strict=True):
            kv = _kv(row)
            status = EngineStatus(int(row["status"])).name.lower()
            lines.append(
                f"  {replica.kind!s:<16} GPUs {','.join(map(str, replica.gpus)):<20} {status:<9} running "
                f"{row['num_running']:4d}  waiting {row['num_waiting']:4d}  KV {kv:4.0%} {level(kv)}"
            )
        return "\n".join(lines)

    def gauges(self, state: DeploymentState) -> dict[str, float]:
        """GPUs of replicas that prefill, decode, and do both."""
        gpus = dict.fromkeys(_ROLE, 0.0)
        for replica in state.deployment.replicas:
            gpus[replica.kind.role] += replica.kind.num_gpus
        return gpus | {"replicas": float(len(state.deployment.replicas))}

    def own_plots(self) -> tuple[Plot, ...]:
        """Replicas, and how GPUs are divided between prefill and decode."""
        per, gpus = self.timeline.per, float(self.episode.setting.cluster.num_gpus)
        curves = [Curve("replicas", per("replicas", "seconds"), GREEN)]
        if self.episode.config.cluster.disaggregation:
            curves.append(Curve("GPUs for prefill alone", per("prefill", "seconds"), SKY))
            curves.append(Curve("for decode alone", per("decode", "seconds"), PURPLE))
        return (Plot("deployment, number of", tuple(curves), 0.0, gpus),)

    def draw(self, canvas: Canvas, area: Area) -> None:
        """Machines in rows, the GPUs of each side by side, replicas over their GPUs."""
        state, field, cluster = self.state, divide(area), self.episode.setting.cluster
        top = field.boxes._replace(y=field.boxes.y - LANE, height=field.boxes.height + LANE)
        columns = 1 if cluster.num_machines <= 4 else 2
        machines = top.grid(columns, -(-cluster.num_machines // columns), 8)[: cluster.num_machines]
        cells = [
            cell._replace(x=cell.x + 22, width=cell.width - 22, y=cell.y + LANE, height=cell.height - LANE)
            for cell in machines
        ]
        slots = [slot for cell in cells for slot in cell.grid(cluster.gpus_per_machine, 1, 4)]
        fewest = min(kind.num_gpus for kind in self.episode.setting.table.kinds)
        smallest = slots[min(fewest, cluster.gpus_per_machine) - 1].right - slots[0].x
        grain = grain_of(slots[0]._replace(width=smallest), self.episode.config.cluster.max_num_seqs)
        draw_gateway(
            canvas, field.gateway, "requests", state.num_pooled, grain, [*self._switch(), self.arrival_line()]
        )
        for number, cell in enumerate(cells):
            canvas.text(cell.x - 16, cell.y + cell.height / 2, f"M{number}", SMALL, GREY, "mm")
        for slot in slots:
            canvas.rect(slot, FAINT, PALE)
        arrows: list[list[tuple[Area, bool, bool]]] = [[] for _ in cells]
        old = set() if self.before is None else set(self.before.deployment.replicas)
        for replica, row in zip(state.deployment.replicas, state.engines, strict=True):
            fresh = self.before is not None and replica not in old
            box, takes = self._draw_replica(canvas, slots, replica, row, fresh, grain)
            arrows[cluster.machine_of(replica.gpus[0])].append((box, takes, False))
        draw_lanes(canvas, field.gateway, arrows, [cell.y - 6 for cell in cells])
        roles = [(SKY, "P: prefill"), (PURPLE, "D: decode")]
        divided = self.episode.config.cluster.disaggregation
        draw_legend(canvas, field.legend, grain, roles if divided else ())

    def _switch(self) -> list[tuple[str, str]]:
        """What the switch under way does."""
        switch = self.state.switch
        if switch is None:
            return []
        return [("draining" if switch.draining else "switching", ACTION)]

    def _draw_replica(
        self,
        canvas: Canvas,
        slots: list[Area],
        replica: Replica,
        row: np.void,
        fresh: bool,
        grain: Grain | None,
    ) -> tuple[Area, bool]:
        """Draws a replica over each run of its GPUs, its requests over the longest run.

        Returns:
            The longest run, and whether new requests go there.
        """
        status = EngineStatus(int(row["status"]))
        takes = status is EngineStatus.ACTIVE
        per_machine = self.episode.setting.cluster.gpus_per_machine
        runs = sorted(_runs(replica.gpus, per_machine), key=len, reverse=True)
        boxes = [slots[run[0]]._replace(width=slots[run[-1]].right - slots[run[0]].x) for run in runs]
        kind = replica.kind
        name = f"{_ROLE[kind.role]}TP {kind.tp}" + (f" PP {kind.pp}" if kind.pp > 1 else "")
        note = "" if takes else "starts" if status is EngineStatus.INACTIVE else status.name.lower()
        engine = Engine(name, int(row["num_running"]), int(row["num_waiting"]), _kv(row), note, takes, fresh)
        for number, box in enumerate(boxes):
            shown = (
                engine
                if number == 0
                else Engine(f"{name}, part", kv=float("nan"), serves=takes, marked=fresh)
            )
            draw_engine(canvas, box, shown, grain)
            if kind.role in _ROLE_COLOUR:
                canvas.rect(Area(box.x + 1, box.y + 1, box.width - 2, 3), _ROLE_COLOUR[kind.role])
        return boxes[0], takes and kind.role != "decode"


def _kv(row: np.void) -> float:
    return float(row["kv_used_blocks"]) / max(1, int(row["kv_capacity_blocks"]))


def _runs(gpus: tuple[int, ...], per_machine: int) -> list[list[int]]:
    """Runs of neighbouring GPUs in one machine."""
    runs = []
    for _, run in groupby(
        enumerate(sorted(gpus)), key=lambda item: (item[1] - item[0], item[1] // per_machine)
    ):
        runs.append([gpu for _, gpu in run])
    return runs
