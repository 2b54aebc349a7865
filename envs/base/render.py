"""Rendering of episodes: text of the present state, and an image with one panel per quantity over time."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_BAR = " ▁▂▃▄▅▆▇█"
Frame = TypeVar("Frame")


@dataclass(frozen=True, eq=False)
class Panel:
    """One quantity over time.

    Attributes:
        title: Name of the quantity.
        values: (frames, engines).
        colours: Matplotlib colour map.
        highest: Top of the scale; None: the largest value, at least 1.
    """

    title: str
    values: NDArray[np.floating]
    colours: str
    highest: float | None = None


def level(share: float) -> str:
    """Bar character for a value between 0 and 1."""
    return _BAR[min(len(_BAR) - 1, max(0, int(np.ceil(share * (len(_BAR) - 1)))))]


def draw_panels(times: Sequence[float], panels: Sequence[Panel], rows: str) -> NDArray[np.uint8]:
    """Draws panels below each other, (height, width, 3).

    Args:
        times: Time of each frame, seconds.
        panels: Panels to draw.
        rows: Label of the rows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.5 * len(panels)), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
    for axis, panel in zip(axes, panels, strict=True):
        highest = panel.highest if panel.highest else max(1.0, float(panel.values.max()))
        extent = (times[0], max(times[-1], times[0] + 1e-3), panel.values.shape[1] - 0.5, -0.5)
        shown = axis.imshow(
            panel.values.T,
            aspect="auto",
            extent=extent,
            cmap=panel.colours,
            vmin=0,
            vmax=highest,
            interpolation="nearest",
        )
        axis.set_title(panel.title, fontsize=8, loc="left")
        axis.set_ylabel(rows, fontsize=7)
        figure.colorbar(shown, ax=axis, pad=0.01)
    axes[-1].set_xlabel("time, s", fontsize=8)
    canvas.draw()  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    figure.savefig(buffer, format="rgba", dpi=80)
    width, height = canvas.get_width_height()
    pixels = np.frombuffer(buffer.getvalue(), np.uint8).reshape(height, width, 4)
    return np.ascontiguousarray(pixels[..., :3])


class BaseRenderer(Generic[Frame]):
    """Keeps the frames of an episode and draws them.

    Attributes:
        history: Most frames kept.
        rows: Label of a row of the image.

    Args:
        episode: The episode to draw.
    """

    history: ClassVar[int] = 600
    rows: ClassVar[str] = "engine"

    def __init__(self, episode: Any) -> None:
        self.episode = episode
        self.frames: deque[Frame] = deque(maxlen=self.history)

    def reset(self) -> None:
        """Drops the frames of the last episode."""
        self.frames.clear()

    def record(self, state: Any) -> None:
        """Adds a frame."""
        self.frames.append(self.frame(state))

    @abstractmethod
    def frame(self, state: Any) -> Frame:
        """Frame of a state; it has a field `now_s`."""

    @abstractmethod
    def text(self) -> str:
        """Text of the present state of the cluster."""

    @abstractmethod
    def panels(self) -> Sequence[Panel]:
        """Panels of the image."""

    def _over_time(self, name: str) -> NDArray[Any]:
        """(frames, rows), a field of the frames."""
        return np.array([getattr(frame, name) for frame in self.frames])

    def image(self) -> NDArray[np.uint8]:
        """(height, width, 3), the panels over time."""
        return draw_panels(self._over_time("now_s").tolist(), self.panels(), self.rows)
