"""Calls a function in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from serving_gym.runners.command_line.cli import use_one_thread

Result = TypeVar("Result")


def available_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def call_in_processes(
    function: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    processes: int,
    prepare: Callable[..., object] | None = None,
    prepare_arguments: tuple[Any, ...] = (),
) -> Iterator[tuple[int, Result]]:
    """Yields the position of each call in `arguments` and its result, in the order in which calls finish.

    Args:
        function: Function of a module, so that a new process can import it.
        arguments: Positional arguments of each call.
        processes: Number of worker processes.
        prepare: Called once in each worker before its first call.
        prepare_arguments: Its arguments.

    Raises:
        Exception: The exception of a call; calls that have not begun are cancelled.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_worker, (prepare, prepare_arguments)) as pool:
        running = {pool.submit(function, *each): position for position, each in enumerate(arguments)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(prepare: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    """Limits a worker to one thread, and ends it when its parent process ends."""
    use_one_thread()
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if prepare is not None:
        prepare(*arguments)


def _end_with(process: BaseProcess) -> None:
    process.join()
    os._exit(1)
