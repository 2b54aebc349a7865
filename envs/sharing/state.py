"""State and decisions of a sharing policy.

The environment holds memory, takes time for loads and resizes, gives a node's iterations to one instance
at a time, lets an allocation beyond a node's memory fail, and unloads instances idle for the keep-alive time. The
policy decides in commands the size and time of KV allocations, the order of growth and shrink, admissions and
migrations. A policy that only places requests leaves memory to the environment's memory manager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.sharing import Event, Place, Retry, SharingCommand

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SharingState:
    """State that a policy may read at a decision. N nodes, S slots, R requests in the system, C classes.

    Attributes:
        now_s: Time, s.
        event: Why there is a decision.
        offered: Row of `requests` to place; -1 at other events.
        node: Node of the event; -1 if none.
        instance: Slot of the event; -1 if none.
        nodes: (N,) NODE_DTYPE.
        instances: (S,) INSTANCE_DTYPE.
        requests: (R,) REQUEST_DTYPE.
        finished: FINISHED_DTYPE, since the last decision.
        runnable: (S,), instances with an iteration to run.
        num_held: HELD requests, the offered one included.
        num_ooms: Instances killed by an allocation, since the episode began.
        totals: (C, len(TOTALS)), since the episode began.
        coming_s: Returns (models,), arrival of the next request of each, s, infinity: never. The future, only for
            clairvoyant references.
    """

    now_s: float
    event: Event
    offered: int
    node: int
    instance: int
    nodes: NDArray[np.void]
    instances: NDArray[np.void]
    requests: NDArray[np.void]
    finished: NDArray[np.void]
    runnable: NDArray[np.bool_]
    num_held: int
    num_ooms: int
    totals: FloatArray
    coming_s: Callable[[], FloatArray]


@dataclass(frozen=True, slots=True)
class Share:
    """A decision with commands. The commands are executed first, in their order; then the placement.

    Attributes:
        place: PLACEMENT: target of the offered request, None: it is held and offered again later;
            ITERATION: the slot that runs, None: the shortest headroom runs; other events: None.
        commands: The commands.
        prefill: ITERATION: whether it prefills; None: if it has a request to prefill that fits.
        retry: PLACEMENT: when a held request is offered again.
    """

    place: Place | None = None
    commands: tuple[SharingCommand, ...] = ()
    prefill: bool | None = None
    retry: Retry = Retry.ALWAYS
