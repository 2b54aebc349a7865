"""Pictures of an episode at even times, and animations of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.drawing.canvas import (
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    LARGE,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    WAITING_TEXT,
    WHITE,
    Canvas,
)
from serving_gym.runners.reporting.output import write_atomically

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]

_STRIP = 24.0  # height of the policy's name above its pictures, logical units
_LAST_S = 2.0  # for which the last picture stays
_SHADES = (1.0, 0.75, 0.5, 0.25)  # of the colours of texts, which are smoothed on white
_FEWEST = 10  # pictures below which no more are left out


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Draws an environment at even times while somebody plays it.

    Attributes:
        pictures: What has been drawn, in the environment's own format.

    Args:
        env: Environment with `render_mode="rgb_array"`.
        number: Pictures.
        from_s: Simulated time of the first, seconds.
        to_s: Of the last; None: the end of its time axis.
    """

    def __init__(
        self, env: gym.Env[Any, Any], number: int, from_s: float = 0.0, to_s: float | None = None
    ) -> None:
        super().__init__(env)
        self._number, self._from_s, self._to_s = number, from_s, to_s
        self.pictures: list[Pixels] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins the episode and draws it where the first picture is due."""
        result = super().reset(seed=seed, options=options)
        core: Any = self.unwrapped
        to_s = core.renderer.timeline.horizon_s if self._to_s is None else self._to_s
        self._due_s = np.linspace(self._from_s, to_s, self._number)
        self.pictures = []
        self._draw()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step and draws what is due; the end of the episode fills what is left."""
        result = super().step(action)
        self._draw(over=result[2] or result[3])
        return result

    def _draw(self, over: bool = False) -> None:
        core: Any = self.unwrapped
        due = int((self._due_s <= core.state.now_s).sum())
        missing = (self._number if over else due) - len(self.pictures)
        if missing > 0:
            picture: Any = self.env.render()
            self.pictures += [picture] * missing


def with_name(picture: Pixels, name: str, scale: float) -> Pixels:
    """A picture with the name of its policy above it."""
    strip = Canvas(picture.shape[1] / scale, _STRIP, scale)
    strip.text(picture.shape[1] / scale / 2, _STRIP / 2, name, LARGE, anchor="mm", bold=True)
    return np.concatenate((strip.pixels()[:, : picture.shape[1]], picture))


def side_by_side(pictures: Sequence[Pixels]) -> Pixels:
    """Pictures beside each other, with a line between two."""
    line = np.full((pictures[0].shape[0], 2, 3), 0x76, np.uint8)
    parts = list(chain.from_iterable((line, picture) for picture in pictures))[1:]
    return np.concatenate(parts, axis=1)


def write_gif(path: Path, pictures: Sequence[Pixels], fps: float, max_bytes: float) -> int:
    """Writes an animation that repeats; one that is too large again with every second picture left out.

    Args:
        path: GIF to write.
        pictures: (height, width, 3) each.
        fps: Pictures per second.
        max_bytes: Largest file.

    Returns:
        Number of pictures written.
    """
    frames, palette = list(pictures), _palette()
    while True:
        indexed = [_indexed(frame, palette) for frame in frames]
        last = len(indexed) - 1
        durations = [
            round(1000.0 / fps) if i < last else round(1000.0 * _LAST_S) for i in range(len(indexed))
        ]
        _save(path, indexed, durations)
        if path.stat().st_size <= max_bytes or len(frames) <= _FEWEST:
            return len(frames)
        frames, fps = [*frames[:-1:2], frames[-1]], fps / 2


def _save(path: Path, frames: Sequence[Image], durations: Sequence[int]) -> None:
    write_atomically(
        path,
        lambda partial: frames[0].save(
            partial, format="GIF", save_all=True, append_images=frames[1:], duration=list(durations), loop=0
        ),
    )


def _palette() -> NDArray[np.int64]:
    """(colours, 3), the colours of pictures and shades of those of texts, so that all frames share one palette."""
    from PIL import ImageColor

    filled = [ImageColor.getrgb(colour)[:3] for colour in (WHITE, GREEN, ORANGE, SKY, PURPLE, PALE, FAINT)]
    written = np.array(
        [ImageColor.getrgb(colour)[:3] for colour in (BLACK, GREY, BLUE, VERMILION, WAITING_TEXT)]
    )
    shades = [np.rint(255 + shade * (written - 255)) for shade in _SHADES]
    return np.concatenate([np.array(filled), *shades]).astype(np.int64)


def _indexed(picture: Pixels, palette: NDArray[np.int64]) -> Image:
    """A picture in the nearest colours of a palette."""
    from PIL import Image

    codes = picture.astype(np.int64) @ (1 << 16, 1 << 8, 1)
    there, places = np.unique(codes, return_inverse=True)
    colours = np.stack((there >> 16, there >> 8 & 255, there & 255), axis=1)
    nearest = ((colours[:, None] - palette) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    image = Image.fromarray(nearest[places].reshape(codes.shape))
    image.putpalette(palette.astype(np.uint8).tobytes())
    return image
