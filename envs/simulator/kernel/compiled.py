"""How the kernel is compiled: by numba, once a machine, and again whenever any of its files changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numba import njit

from serving_gym.envs.simulator.compiling import NOTICE

Function = TypeVar("Function", bound=Callable[..., object])

if TYPE_CHECKING:

    def int64(value: int | float) -> int:
        """An integer of the kernel's one width: numba compiles a function anew for every other."""

else:
    int64 = np.int64


_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False, "error_model": "numpy"}
_UNSEEN: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@lru_cache
def source_stamp(folder: Path = Path(__file__).parent) -> str:
    """A digest of every source file of a kernel, which lie in one folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def entry(function: Function) -> Function:
    """Compiles a kernel function that Python calls.

    Without numba's reference counts: nothing here allocates, and counting references to the world's arrays took four
    fifths of the time. With a cache that notices a change in any file of the kernel: numba itself watches only the file
    a function stands in, so that a change in `engine.py` would leave the old code inside a cached `world.advance`.
    """
    dispatcher = _stamped(njit(**_OPTIONS)(function))
    NOTICE.watch(dispatcher._cache)
    return dispatcher


def compiled(function: Function) -> Function:
    """Compiles a kernel function that only the kernel calls.

    It has no door for Python: taking a world apart, array by array, is most of the work of compiling a small function.
    """
    return _stamped(njit(**_UNSEEN)(function))


def inlined(function: Function) -> Function:
    """Compiles a kernel function into its callers.

    For what every event passes through: a world and its tables are some 150 words, and handing them on from function to
    function took more than half of the time.
    """
    return _stamped(njit(forceinline=True, **_UNSEEN)(function))


def spliced(function: Function) -> Function:
    """Puts the text of a kernel function into its callers, so that it is compiled with them alone.

    For what is large and has one caller or two: `inlined` compiles it for itself as well, which nobody ever runs.
    """
    return _stamped(njit(inline="always", **_UNSEEN)(function))


def _stamped(dispatcher: Function) -> Function:
    folders = {
        Path(dispatcher.__code__.co_filename).parent,
        Path(__file__).parent,
    }  # its own and what it calls
    stamp = " ".join(source_stamp(folder) for folder in sorted(folders))
    dispatcher._cache._cache_file._source_stamp = stamp  # type: ignore[attr-defined]
    return dispatcher
