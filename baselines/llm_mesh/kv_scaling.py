"""When the KV cache of an instance is resized, and to what (LLM-Mesh, sections 6.2 and 6.4).

Early up: as soon as what a new request requires exceeds what there is, up to the recommended size at once. Lazy down:
only when the recommended size, once more by the watermark, falls below what there is. The compromise: where the
recommended size cannot be had, the required one will do.
"""

from __future__ import annotations

from collections.abc import Callable


def recommended(required: float, watermark: float) -> float:
    """M_recommend = M_require * (1 + w).

    Args:
        required: M_require, in any unit.
        watermark: w as a fraction: 0.2 for 20 %.
    """
    return required * (1.0 + watermark)


def scale_up_to(current: float, required: float, watermark: float) -> float | None:
    """Size to grow to for a new request; None where what there is suffices."""
    return recommended(required, watermark) if current < required else None


def scale_down_to(current: float, required: float, watermark: float) -> float | None:
    """Size to shrink to after a request has finished; None where that is put off."""
    target = recommended(required, watermark)
    return target if recommended(target, watermark) < current else None


def compromise(
    current: float,
    required: float,
    watermark: float,
    approved: Callable[[float], bool],
    allowed: bool = True,
) -> float | None:
    """Size with which a request can be taken; None where the memory that is left does not even do for M_require.

    Args:
        current: M_cur.
        required: M_require with the new request.
        watermark: w as a fraction.
        approved: Whether the node's budget would let the instance have a size.
        allowed: Whether to make do with M_require; without it, what is recommended is insisted on.
    """
    target = scale_up_to(current, required, watermark)
    if target is None:
        return current
    if approved(target):
        return target
    return required if allowed and approved(required) else None
