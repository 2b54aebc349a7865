"""Choices of a study that its paper leaves open."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def choice(default: Any, *alternatives: Any, parts: tuple[str, ...] = (), why: str = "") -> Any:
    """A field of a study's choices.

    Args:
        default: What is taken.
        alternatives: What a sensitivity run takes instead.
        parts: Parts of the evaluation that depend on it; none: all.
        why: What the paper's text leaves open, and the source of the value.
    """
    return field(default=default, metadata={"alternatives": alternatives, "parts": parts, "why": why})
