"""Rendering of episodes: text of the present state, and a picture of the cluster over plots of the episode so far."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.drawing.canvas import (
    ACTION,
    BLACK,
    BLUE,
    GREY,
    LARGE,
    NORMAL,
    ORANGE,
    PALE,
    SKY,
    SMALL,
    Area,
    Canvas,
)
from serving_gym.envs.base.drawing.timeline import (
    BINS,
    Curve,
    Plot,
    Timeline,
    draw_plots,
    format_number,
    nice,
)
from serving_gym.envs.base.episode import last_arrival_s
from serving_gym.envs.interface.state import TOTALS

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload

_BAR = " ▁▂▃▄▅▆▇█"
_USUAL_REQUESTS = 1000  # where neither the episode's requests nor their number are known
State = TypeVar("State")


def level(share: float) -> str:
    """Bar character for a value between 0 and 1."""
    return _BAR[min(len(_BAR) - 1, max(0, int(np.ceil(share * (len(_BAR) - 1)))))]


def clock(now_s: float, horizon_s: float) -> str:
    """Time of an episode, as long as its length needs: `12.3 s`, `12:34 min`, `1:23:45 h`."""
    if horizon_s < 900:
        return f"{now_s:.1f} s"
    minutes, seconds = divmod(int(now_s), 60)
    if horizon_s < 7200:
        return f"{minutes}:{seconds:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} h"


class BaseRenderer(Generic[State]):
    """Follows an episode and draws it.

    Attributes:
        size: Width and height of the picture, logical units.
        scale: Pixels of a logical unit.
        plots_height: Height of the plots, logical units.

    Args:
        episode: The episode to draw.
    """

    size: ClassVar[tuple[float, float]] = (640.0, 500.0)
    scale: float = 1.5
    plots_height: ClassVar[float] = 228.0
    state: State
    before: State | None
    timeline: Timeline

    def __init__(self, episode: Any) -> None:
        self.episode = episode

    def reset(self, state: State) -> None:
        """Begins an episode with its first state."""
        self.before, self.state, self.action = None, state, None
        self.returned, self.refused, self.decision = 0.0, "", "none yet"
        self._totals = self.totals(state).copy()
        self.timeline, self._peak_rps = self._scales()

    def record(self, state: State, action: Any, reward: float = 0.0, refused: str = "") -> None:
        """Takes note of a decision and of the state that it led to.

        Args:
            state: The state.
            action: What was decided.
            reward: Its reward.
            refused: Why it was refused; empty: it was not.
        """
        self.before, self.state, self.action = self.state, state, action
        self.returned += reward
        self.refused = refused
        self.decision = self.describe(self.before, action)
        totals, from_s, to_s = self.totals(state), self.now_s(self.before), self.now_s(state)
        gauges = {name: value * (to_s - from_s) for name, value in self.gauges(state).items()}
        self.timeline.add(self.amounts(totals - self._totals) | gauges, from_s, to_s)
        self._totals = totals.copy()

    @staticmethod
    def now_s(state: State) -> float:
        """Time of a state, seconds."""
        return float(state.now_s)  # type: ignore[attr-defined]

    def totals(self, state: State) -> NDArray[np.float64]:
        """(classes, at least len(TOTALS)), counted since the episode began."""
        totals: NDArray[np.float64] = state.totals  # type: ignore[attr-defined]
        return totals

    def amounts(self, grown: NDArray[np.float64]) -> dict[str, float]:
        """What goes into the columns of the time line.

        Args:
            grown: (classes, len(TOTALS)), growth of the totals since the last state.
        """
        of = {name: grown[:, i] for i, name in enumerate(TOTALS)}
        slos = self.episode.slos
        return {
            "arrived": float(of["arrived"].sum()),
            "first_tokens": float(of["first_tokens"].sum()),
            "ttft": float(sum(of["ttft_sum_s"][c] / slo.ttft_s for c, slo in enumerate(slos))),
            "finished": float(of["finished"].sum()),
            "tpot": float(sum(of["tpot_sum_s"][c] / slo.tpot_s for c, slo in enumerate(slos))),
        }

    def gauges(self, state: State) -> dict[str, float]:
        """Further columns of the time line: what there was until a state; a plot has them per second."""
        return {}

    def arrival_line(self) -> tuple[str, str]:
        """The arrival rate of the last bins of the time axis, and its colour."""
        last = min(int(self.now_s(self.state) / self.timeline.bin_s), BINS - 1)
        recent = slice(max(last - 1, 0), last + 1)
        seconds = float(self.timeline.column("seconds")[recent].sum())
        rate = float(self.timeline.column("arrived")[recent].sum()) / seconds if seconds > 0 else 0.0
        return f"{format_number(rate)} arrive/s", BLUE

    # -- scales --------------------------------------------------------------------------------------------------------

    def workload(self) -> Workload | None:
        """Requests of the episode; None: they are not known beforehand."""
        simulator = getattr(self.episode, "simulator", None)
        workload: Workload | None = getattr(simulator, "workload", None)
        return workload

    def _scales(self) -> tuple[Timeline, float]:
        """The time axis, and the top of the scale of arrivals, requests/s."""
        workload, source = self.workload(), self.episode.source
        if workload is None or not len(workload.arrival_s):
            horizon_s = (source.spec.num_requests or _USUAL_REQUESTS) / source.rate_rps
            return Timeline(1.05 * horizon_s), nice(3 * source.rate_rps)
        timeline = Timeline(1.03 * self._expected_end_s(workload))
        counts, _ = np.histogram(workload.arrival_s, BINS, (0.0, timeline.horizon_s))
        return timeline, nice(float(counts.max()) / timeline.bin_s)

    def _expected_end_s(self, workload: Workload) -> float:
        """The decision by which most have ended if a request takes as long as its SLO allows, seconds."""
        slos = self.episode.slos
        limits = np.array([(slo.ttft_s, slo.tpot_s) for slo in slos])[workload.class_id]
        allowed_s = limits[:, 0] + limits[:, 1] * (workload.output_tokens - 1)
        end_s = last_arrival_s(workload, slos) + float(np.median(allowed_s))
        interval_s: float = self.episode.policy_spec.decision_interval_s
        return float(np.ceil(end_s / interval_s) * interval_s)

    # -- text ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def text(self) -> str:
        """Text of the present state of the cluster."""

    @abstractmethod
    def title(self) -> str:
        """What the cluster is: environment, hardware and model."""

    @abstractmethod
    def describe(self, before: State, action: Any) -> str:
        """A decision in a few words.

        Args:
            before: The state it was taken in.
            action: What was decided.
        """

    # -- picture -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, canvas: Canvas, area: Area) -> None:
        """Draws the cluster as it is now."""

    def plots(self) -> Sequence[Plot]:
        """Plots below the cluster."""
        timeline = self.timeline
        arrivals = Curve("", timeline.per("arrived", "seconds"), SKY, filled=True)
        latency = (
            Curve("TTFT", timeline.per("ttft", "first_tokens"), BLUE),
            Curve("TPOT", timeline.per("tpot", "finished"), ORANGE),
        )
        return (
            Plot("arrivals, requests/s", (arrivals,), 0.0, self._peak_rps),
            *self.own_plots(),
            Plot("mean latency / SLO (lower is better)", latency, 0.01, 100.0, log=True, limit=1.0),
        )

    def own_plots(self) -> Sequence[Plot]:
        """What the environment shows between arrivals and latency."""
        return ()

    def image(self) -> NDArray[np.uint8]:
        """(height, width, 3), the cluster now over the episode so far."""
        width, height = self.size
        canvas = Canvas(width, height, self.scale)
        self._draw_head(canvas, width)
        top, bottom = 44.0, height - self.plots_height
        self.draw(canvas, Area(6, top, width - 12, bottom - top - 4))
        canvas.line([(0, bottom), (width, bottom)], PALE)
        plots = Area(6, bottom + 4, width - 12, self.plots_height - 6)
        draw_plots(canvas, plots, self.plots(), self.timeline, self.now_s(self.state))
        return canvas.pixels()

    def _draw_head(self, canvas: Canvas, width: float) -> None:
        now = clock(self.now_s(self.state), self.timeline.horizon_s)
        used = canvas.text(width - 8, 4, now, LARGE, BLACK, "ra", bold=True)
        canvas.text(8, 4, self.title(), LARGE, BLACK, bold=True, room=width - used - 24)
        used = canvas.text(width - 8, 24, self._figures(), SMALL, GREY, "ra")
        decision = f"refused: {self.refused}" if self.refused else f"decision: {self.decision}"
        canvas.text(8, 22, decision, NORMAL, ACTION, room=width - used - 28)

    def _figures(self) -> str:
        """Attainment and return so far."""
        sums = self._totals.sum(axis=0)
        parts = []
        for name, met, all_of in (("TTFT", "ttft_met", "first_tokens"), ("TPOT", "tpot_met", "finished")):
            number = sums[TOTALS.index(all_of)]
            if number:
                parts.append(f"{name} in SLO {sums[TOTALS.index(met)] / number:.0%}")
        return "   ".join([*parts, f"return {self.returned:.4g}"])
