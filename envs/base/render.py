"""What the environments' pictures have in common: quantities of each engine over time, one panel a quantity."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BAR = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, eq=False)
class Panel:
    """One quantity.

    Attributes:
        title: What it is.
        values: (frames, engines).
        colours: Matplotlib colour map.
        highest: Top of the scale; None: the largest value, at least 1.
    """

    title: str
    values: NDArray[np.floating]
    colours: str
    highest: float | None = None


def level(share: float) -> str:
    """A character as high as a share of 1."""
    return _BAR[min(len(_BAR) - 1, max(0, int(np.ceil(share * (len(_BAR) - 1)))))]


def draw_panels(times: Sequence[float], panels: Sequence[Panel], rows: str) -> NDArray[np.uint8]:
    """Draws panels below each other, (height, width, 3).

    Args:
        times: Seconds of each frame.
        panels: What to draw.
        rows: What a row stands for.
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
