"""Prints once per process that the kernel is being compiled, if that takes long."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tqdm import tqdm

USUAL_S = 60  # time of a whole kernel on one core of a server; a slow laptop takes twice as long
_PATIENCE_S = 1.0  # shorter compilations print nothing


class CompilationNotice:
    """Watches the cache of each compiled function; loading from the cache prints nothing.

    Args:
        patience_s: Time of a compilation after which it is announced, s.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._timer: threading.Timer | None = None
        self._running = 0  # nested compilations in progress
        self._said = False

    def watch(self, cache: Any) -> None:
        """Hooks numba's cache of one function to learn of misses and finished compilations.

        Args:
            cache: Cache of a dispatcher.
        """
        load, save = cache.load_overload, cache.save_overload

        def load_overload(signature: Any, context: Any) -> Any:
            found = load(signature, context)
            if found is None:
                self._begin()
            return found

        def save_overload(signature: Any, data: Any) -> None:
            self._end()
            save(signature, data)

        cache.load_overload, cache.save_overload = load_overload, save_overload

    def _begin(self) -> None:
        self._running += 1
        if self._timer is None and not self._said:
            self._timer = threading.Timer(self._patience_s, self._say)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self._running -= 1
        if self._running <= 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _say(self) -> None:
        if self._said:
            return
        self._said = True
        line = f"compiling the kernel, about {USUAL_S} s, once on this machine"
        tqdm.write(line, file=sys.stderr)  # above a progress bar, where there is one


NOTICE = CompilationNotice()
