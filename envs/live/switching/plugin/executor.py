"""The executor: a queue of orders a rank, so that groups run at their own pace.

Every order is answered by one rank of its group; answers of a rank come in the order of its orders. What is asked of
all ranks together (`collective_rpc`) goes out after everything that is running has been answered.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from .groups import Group
from .messages import SwitchingOutput, SwitchingResult
from .supported import check_config

_CHUNK_BYTES = 4 << 20
_POLL_S = 50e-6  # a spinning wait would take a core from the workers


class _Fanout:
    """The queues of all ranks in the place of vLLM's common one."""

    def __init__(self, common: MessageQueue, queues: list[MessageQueue]) -> None:
        self.common, self.queues = common, queues

    def enqueue(self, order: Any, timeout: float | None = None) -> None:
        """Gives an order to every rank."""
        for queue in self.queues:
            queue.enqueue(order, timeout)

    def shutdown(self) -> None:
        """Shuts all queues down."""
        for queue in [self.common, *self.queues]:
            queue.shutdown()


class _Turn(Future):  # type: ignore[type-arg]
    """Resolves to what comes back next, or has come back already where there is no waiting."""

    def __init__(self, executor: SwitchingExecutor, wait: bool) -> None:
        super().__init__()
        self._executor, self._wait = executor, wait

    def result(self, timeout: float | None = None) -> SwitchingResult:
        """Waits for the first answer of those outstanding, and takes all that are there."""
        return self._executor.take(self._wait)


class SwitchingExecutor(MultiprocExecutor):
    """vLLM's executor of one process a rank, for the plugin's scheduler."""

    def _post_init_executor(self) -> None:
        check_config(self.vllm_config)
        self._outstanding: list[deque[Group | None]] = [deque() for _ in range(self.world_size)]
        self._arrived = SwitchingResult()
        self._queues = [MessageQueue(1, 1, max_chunk_bytes=_CHUNK_BYTES) for _ in range(self.world_size)]
        handles = [queue.export_handle() for queue in self._queues]
        attached = super().collective_rpc("switching_attach", args=(handles,), non_block=True)
        for queue in self._queues:
            queue.wait_until_ready()
        attached.result()
        self.rpc_broadcast_mq: Any = _Fanout(self.rpc_broadcast_mq, self._queues)

    def determine_available_memory(self) -> list[int]:
        """Bytes left for KV on each rank."""
        available: list[int] = self.collective_rpc("switching_available_memory")
        return available

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """Allocates the KV cache once and shows it to every degree."""
        self.collective_rpc("switching_initialize", args=(kv_cache_configs,))

    def collective_rpc(self, *args: Any, **kwargs: Any) -> Any:
        """Asks all ranks, once nothing runs on any."""
        while any(self._outstanding):
            self._take_answers()
            time.sleep(_POLL_S)
        return super().collective_rpc(*args, **kwargs)

    def execute_model(self, scheduler_output: SwitchingOutput, non_block: bool = False) -> Any:
        """Sends out what starts in this turn."""
        for entry in scheduler_output.entries:
            for rank in entry.group.ranks:
                self._send(rank, "switching_enter", entry, rank, None)
        for batch in scheduler_output.batches:
            for rank in batch.group.ranks:
                self._send(rank, "switching_execute", batch, batch.group.first, batch.group)
        turn = _Turn(self, wait=not scheduler_output.entries)  # ranks enter while the next turn schedules
        return turn if non_block else turn.result()

    def _send(self, rank: int, method: str, order: Any, answered_by: int, group: Group | None) -> None:
        self._queues[rank].enqueue((method, (order,), {}, answered_by))
        if rank == answered_by:
            self._outstanding[rank].append(group)

    def take(self, wait: bool) -> SwitchingResult:
        """What has come back since the last call.

        Args:
            wait: whether to wait for something if something is outstanding and nothing is there.

        Raises:
            RuntimeError: a worker failed or is gone.
        """
        while True:
            self._take_answers()
            there = self._arrived.outputs or self._arrived.confirmed
            if there or not wait or not any(self._outstanding):
                result, self._arrived = self._arrived, SwitchingResult()
                return result
            time.sleep(_POLL_S)

    def _take_answers(self) -> None:
        if self.is_failed:
            raise RuntimeError("Executor failed.")
        for rank, outstanding in enumerate(self._outstanding):
            while outstanding and _holds_answer(self.response_mqs[rank]):
                status, answer = self.response_mqs[rank].dequeue()
                if status != WorkerProc.ResponseStatus.SUCCESS:
                    raise RuntimeError(f"Worker {rank} failed with error '{answer}'")
                self._book(rank, outstanding.popleft(), answer)

    def _book(self, rank: int, group: Group | None, answer: Any) -> None:
        if group is None:
            number, enter_ms, at_s = answer
            self._arrived.confirmed.append((number, rank, enter_ms, at_s))
        else:
            self._arrived.outputs[group] = answer


def _holds_answer(queue: MessageQueue) -> bool:
    """Whether reading a queue would not wait."""
    with queue.buffer.get_metadata(queue.current_idx) as flags:
        return bool(flags[0] and not flags[queue.local_reader_rank + 1])
