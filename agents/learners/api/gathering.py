"""States sampled by several processes at once: each plays episodes of its own, for the same share of the budget."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import numpy as np

from serving_gym.agents.learners.api.counterfactuals import Batch, Counterfactuals
from serving_gym.agents.learners.learner import Budget


def available_processes(wanted: int) -> int:
    """Number of processes that have a processor core each, at most `wanted`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(wanted, cores))


class Gatherers:
    """Forked processes that sample states until a share of the budget is used up; used with `with`.

    A process starts from the present policy and from the present episode, draws its own random numbers, and ends with
    its batch: the parent's episodes and random stream are not touched.

    Args:
        world: Training episodes and rollouts; copied by the fork, with `rng`.
        rng: The random numbers of the world.
        budget: The training's budget; each process counts its own decisions.
        until: Share of the budget at which sampling ends, 0 to 1.
        number: Processes; the seed of each is drawn from `rng`.
    """

    def __init__(
        self, world: Counterfactuals, rng: np.random.Generator, budget: Budget, until: float, number: int
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._running = []
        for _ in range(number):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (sender, world, rng, budget, until, int(rng.integers(2**31)))
            process = context.Process(target=_gather, args=arguments, daemon=True)
            process.start()
            sender.close()
            self._running.append((process, receiver))

    def collect(self, budget: Budget, batch: Batch) -> None:
        """Waits for all processes, adds their states to a batch, and counts their decisions.

        Raises:
            RuntimeError: A process ended without a result.
        """
        for process, receiver in self._running:
            try:
                states, decisions = receiver.recv()
            except EOFError:
                raise RuntimeError("a process that sampled states ended without a result") from None
            process.join()
            batch.extend(states)
            budget.count(decisions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, receiver in self._running:
            receiver.close()
            if process.is_alive():
                process.terminate()
                process.join()


def _gather(
    sender: Connection,
    world: Counterfactuals,
    rng: np.random.Generator,
    budget: Budget,
    until: float,
    seed: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    own, batch = replace(budget, on_progress=None), Batch()
    while own.progress < until and not own.over:
        world.play(own, batch)
    sender.send((batch, own.steps - budget.steps))
    sender.close()


def _end_with_parent() -> None:
    """Ends this process when its parent is gone: nobody would read what it sends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
