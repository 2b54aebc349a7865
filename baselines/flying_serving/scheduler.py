"""Algorithm 1 of Flying Serving (section 5.1): one iteration of the scheduling loop, in six steps.

The listing itself is missing from the text; it is reconstructed from the prose. `source: ours` marks what the prose
leaves open: how peers' queues are merged (by arrival, then id); that a request is designated for TP by naming the
engines of its group; which width is set when requests of one iteration ask for several (the widest); that a request
without blocks stays in the queue, keeps its place and raises no flag, so that no engine switches for work that cannot
run; that unfinished requests stay in the queue and get room for one more token an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serving_gym.baselines.flying_serving.kv_cache_adaptor import KVCacheAdaptor, KVParameters

SET_TP_MODE, RESET_TP_MODE, EXECUTE_MODEL = "set_TP_mode", "reset_TP_mode", "execute_model"


@dataclass(frozen=True)
class ScheduledRequest:
    """A request as the scheduler sees it.

    Attributes:
        request: Its id.
        arrival_s: When it arrived, seconds.
        num_tokens: Tokens of its prompt.
        engines: Engines designated for it: one for DP, the members of a group for TP. Source: ours.
    """

    request: int
    arrival_s: float
    num_tokens: int
    engines: tuple[int, ...]

    @property
    def is_tp(self) -> bool:
        """Whether it is designated for tensor parallelism."""
        return len(self.engines) > 1


@dataclass(frozen=True)
class WorkItem:
    """A tuple of the worklist: what one request runs with in this iteration."""

    request: int
    engines: tuple[int, ...]
    parameters: KVParameters
    blocks: tuple[tuple[int, ...], ...]  # physical block ids on each of the engines


@dataclass(frozen=True)
class Modes:
    """Outcome of step 3."""

    set_flag: bool
    reset_flag: bool
    width: int


RpcBroadcast = Callable[[str, tuple[Any, ...]], Iterable[int]]


def sync_workload(queues: Iterable[Sequence[ScheduledRequest]]) -> tuple[ScheduledRequest, ...]:
    """Step 2: the waiting queue that all peers agree on, whatever the order they are heard in.

    By arrival, then id (source: ours); a request that several peers hold is there once.
    """
    merged = {request.request: request for queue in queues for request in queue}
    return tuple(sorted(merged.values(), key=lambda request: (request.arrival_s, request.request)))


def determine_mode(queue: Sequence[ScheduledRequest]) -> Modes:
    """Step 3: flags and TP width, over the agreed queue.

    A TP request raises the set flag and updates the width; any other request raises the reset flag. With several
    widths in one iteration the widest is set (source: ours).
    """
    width, set_flag, reset_flag = 1, False, False
    for request in queue:
        if request.is_tp:
            width, set_flag = max(width, len(request.engines)), True
        else:
            reset_flag = True
    return Modes(set_flag, reset_flag, width)


class FlyingScheduler:
    """The scheduling loop.

    Args:
        kv: The KV cache adaptor.
        broadcast: Collective RPC to all engines: method and arguments; execute_model returns the finished requests.
        peers: Returns the queues of the other schedulers.
        publish: Takes the ids of the finished requests (PublishOutput).
    """

    def __init__(
        self,
        kv: KVCacheAdaptor,
        broadcast: RpcBroadcast,
        peers: Callable[[], Iterable[Sequence[ScheduledRequest]]] = tuple,
        publish: Callable[[tuple[int, ...]], None] = lambda finished: None,
    ) -> None:
        self.kv = kv
        self.queue: list[ScheduledRequest] = []
        self._broadcast, self._peers, self._publish = broadcast, peers, publish

    def step(self, socket: Iterable[ScheduledRequest]) -> tuple[WorkItem, ...]:
        """One iteration; returns its worklist."""
        self.process_input(socket)
        agreed = sync_workload([self.queue, *self._peers()])
        runnable = tuple(request for request in agreed if self._allocate(request))
        modes = determine_mode(runnable)
        worklist = tuple(self._work_item(request) for request in runnable)
        self.switch_mode(modes)
        self._execute(agreed, worklist)
        return worklist

    def process_input(self, socket: Iterable[ScheduledRequest]) -> None:
        """Step 1: newly arrived requests join the local queue. Nothing is decided."""
        self.queue.extend(socket)

    def _allocate(self, request: ScheduledRequest) -> bool:
        """Step 4: blocks under the parameters of the request's own width, equations (4a) and (4b)."""
        if request.request in self.kv.requests:
            return self.kv.append(request.request)
        if request.is_tp:
            self.kv.bind(request.engines)
        else:
            self.kv.release(request.engines)
        return self.kv.allocate(request.request, request.engines[0], request.num_tokens)

    def _work_item(self, request: ScheduledRequest) -> WorkItem:
        entry = self.kv.requests[request.request]
        blocks = tuple(tuple(entry.blocks[engine]) for engine in entry.engines)
        return WorkItem(request.request, entry.engines, entry.parameters, blocks)

    def switch_mode(self, modes: Modes) -> None:
        """Step 5: at most one mode message, before execution, so that every engine switches at the same point."""
        if modes.set_flag:
            self._broadcast(SET_TP_MODE, (modes.width,))
        elif modes.reset_flag:
            self._broadcast(RESET_TP_MODE, ())

    def _execute(self, agreed: Sequence[ScheduledRequest], worklist: tuple[WorkItem, ...]) -> None:
        """Step 6: one inference step on all engines; what is finished is published and gives its blocks back."""
        finished = tuple(self._broadcast(EXECUTE_MODEL, (worklist,))) if worklist else ()
        for request in finished:
            self.kv.free(request)
        self.queue = [request for request in agreed if request.request not in finished]
        self._publish(finished)
