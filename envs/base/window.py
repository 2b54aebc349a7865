"""The window of `render_mode="human"`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

NO_DISPLAY = (
    'render_mode="human" opens no window: there is no display, or no window toolkit that matplotlib can use (such as '
    'tk, PyQt6 or PySide6); render_mode="rgb_array" returns the same pictures'
)


class Window:
    """A matplotlib window that shows pictures one after another. Without a display it says so once and shows nothing.

    Args:
        title: Title of the window.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._figure: Any = None
        self._shown: Any = None
        self._possible = True

    def show(self, pixels: NDArray[np.uint8], wait_s: float) -> None:
        """Shows a picture and lets the window react for a while.

        Args:
            pixels: (height, width, 3), the picture.
            wait_s: How long, seconds.
        """
        if not self._possible:
            return
        if self._figure is None and not self._open(pixels):
            self._possible = False
            gym.logger.warn(NO_DISPLAY)
            return
        self._shown.set_data(pixels)
        self._figure.canvas.draw_idle()
        self._figure.canvas.start_event_loop(wait_s)

    def _open(self, pixels: NDArray[np.uint8]) -> bool:
        """Opens the window; returns whether there is one."""
        try:
            from matplotlib import pyplot as plt

            height, width = pixels.shape[:2]
            figure = plt.figure(figsize=(width / 100, height / 100), dpi=100)
        except ImportError:  # the toolkit that MPLBACKEND or matplotlibrc names has no display
            return False
        if figure.canvas.required_interactive_framework is None:
            plt.close(figure)
            return False
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        self._shown, self._figure = axes.imshow(pixels), figure
        if figure.canvas.manager is not None:
            figure.canvas.manager.set_window_title(self._title)
        figure.show()
        return True

    def close(self) -> None:
        """Closes the window."""
        if self._figure is not None:
            from matplotlib import pyplot as plt

            plt.close(self._figure)
            self._figure = None
