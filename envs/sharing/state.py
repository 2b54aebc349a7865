"""What a policy knows when instances share nodes, and what it can say.

Where the line runs. The world holds memory, takes time for loads and resizes, gives a node's iterations to one instance
at a time, lets an allocation beyond a node's memory fail, and unloads what has been idle for the keep-alive time. How
much KV cache an instance asks for, when, whether a growth waits for a shrink, who is admitted and who is moved are the
policy's: it says so in commands. A policy that only places leaves memory to the environment's own manager.
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
    """What a policy may know at a decision. N nodes, S slots, R requests in the system, C classes."""

    now_s: float
    event: Event
    offered: int  # row of `requests` that waits for a place; -1 where the event is another
    node: int  # where the event is; -1 where nowhere
    instance: int
    nodes: NDArray[np.void]  # (N,) NODE_DTYPE
    instances: NDArray[np.void]  # (S,) INSTANCE_DTYPE
    requests: NDArray[np.void]  # (R,) REQUEST_DTYPE
    finished: NDArray[np.void]  # FINISHED_DTYPE, since the last decision
    runnable: NDArray[np.bool_]  # (S,), which instances have an iteration to run
    num_held: int  # HELD requests, the offered one included
    num_ooms: int  # instances that died of an allocation, since the episode began
    totals: FloatArray  # (C, len(TOTALS)), since the episode began
    # (models,), when the next request of each comes, infinity: never. The future, for clairvoyant references alone.
    coming_s: Callable[[], FloatArray]


@dataclass(frozen=True, slots=True)
class Share:
    """A decision of a policy that says more than a place. Commands first, in their order; then the place.

    Attributes:
        place: PLACEMENT: where the offered request goes, None: it is held and offered again later;
            ITERATION: the slot that runs, None: shortest headroom decides; other events: None.
        commands: What is told besides.
        prefill: ITERATION: whether it prefills; None: if it has a request to prefill that fits.
        retry: PLACEMENT: when the request is offered again if it is held.
    """

    place: Place | None = None
    commands: tuple[SharingCommand, ...] = ()
    prefill: bool | None = None
    retry: Retry = Retry.ALWAYS
