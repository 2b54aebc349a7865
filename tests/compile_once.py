"""Workers of pytest-xdist compile each numba function once between them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def share_compilations(folder: Path) -> None:
    """Lets one process compile a function while the others wait, which then load it from numba's cache.

    Without it every worker compiles the simulator's kernel for itself at the start, a minute each. A function is locked
    while what it calls is compiled; calls form no cycle, so neither do waiting processes.

    Args:
        folder: Where the lock files lie, the same for all workers of a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compile_alone = Dispatcher.compile
    held: set[str] = set()

    def compile_once(self: Dispatcher, signature: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        if signature in self.overloads or name in held:
            return compile_alone(self, signature)
        with global_compiler_lock, _locked(folder / f"{name}.lock", name, held):
            return compile_alone(self, signature)

    Dispatcher.compile = compile_once


@contextmanager
def _locked(path: Path, name: str, held: set[str]) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases it
        held.add(name)
        try:
            yield
        finally:
            held.discard(name)
