"""vLLM's scheduler for one group, with what a switch needs: handing requests over, giving up blocks, and figures."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from .groups import Group
from .messages import GroupBatch


class GroupScheduler(Scheduler):
    """Queue, batch and blocks of a group. Its pool has the ids of the one physical pool that all groups share.

    Args:
        group: The group.
        kwargs: What vLLM's scheduler takes; the block size is that of the group's degree.
    """

    def __init__(self, group: Group, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group = group
        self.batch: SchedulerOutput | None = None  # the iteration that is running
        self.lent: list[Any] = []  # blocks that hold the KV of requests that stand still in narrower groups
        self.preemptions = 0
        self.generated_tokens = 0
        self.prefilled_tokens = 0
        self.busy_s = 0.0
        self._began_s = 0.0

    # -- iterations ----------------------------------------------------------------------------------------------------

    def start(self) -> GroupBatch | None:
        """Schedules an iteration; None: there is nothing to do."""
        output = self.schedule()
        if not output.num_scheduled_tokens and not output.finished_req_ids:
            return None
        self.prefilled_tokens += sum(
            self._of_prompt(output, *item) for item in output.num_scheduled_tokens.items()
        )
        self.batch, self._began_s = output, time.monotonic()
        begun = [self.requests[new.req_id] for new in output.scheduled_new_reqs]
        histories = {r.request_id: list(r.output_token_ids) for r in begun if r.num_output_tokens}
        return GroupBatch(self.group, output, self.get_grammar_bitmask(output), histories)

    def finish(self, model_output: Any) -> dict[int, EngineCoreOutputs]:
        """Takes the running iteration's tokens."""
        assert self.batch is not None
        batch, self.batch = self.batch, None
        self.busy_s += time.monotonic() - self._began_s
        outputs = self.update_from_output(batch, model_output)
        self.generated_tokens += sum(
            len(out.new_token_ids) for eco in outputs.values() for out in eco.outputs
        )
        return outputs

    def _of_prompt(self, output: SchedulerOutput, request_id: str, num_tokens: int) -> int:
        """Tokens of an iteration that are prefilled: prompt, or what is recomputed of a request moved here."""
        request = self.requests[request_id]
        before = (
            request.num_computed_tokens - num_tokens
        )  # vLLM counts an iteration's tokens when it schedules them
        return num_tokens if not request.num_output_tokens or before + 1 < request.num_tokens else 0

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        self.preemptions += 1
        super()._preempt_request(request, timestamp, drop_stale_output)

    # -- requests that come and go -------------------------------------------------------------------------------------

    @property
    def queued(self) -> list[Request]:
        """Requests without KV, in order."""
        return list(self.waiting)

    def place(self, request: Request) -> None:
        """Takes a request that was announced to vLLM's statistics before."""
        self.requests[request.request_id] = request
        self._enqueue_waiting_request(request)

    def hand_over(self, requests: Iterable[Request]) -> list[Request]:
        """Lets requests go, as if they had never been here: those with KV lose it and are recomputed elsewhere."""
        leaving = list(requests)
        statuses = {request.request_id: request.status for request in leaving}
        self.finish_requests(list(statuses), RequestStatus.FINISHED_ABORTED)
        for request in leaving:
            _begin_anew(request, statuses[request.request_id], self.log_stats)
        return leaving

    # -- blocks --------------------------------------------------------------------------------------------------------

    @property
    def _pool(self) -> Any:
        return self.kv_cache_manager.block_pool

    def held_blocks(self) -> set[int]:
        """Blocks that hold KV of this group, or of narrower ones inside it."""
        own = [self.kv_cache_manager.get_block_ids(request.request_id) for request in self.running]
        return {block_id for (ids,) in own for block_id in ids} | {block.block_id for block in self.lent}

    @property
    def free_blocks(self) -> int:
        """Free blocks."""
        return int(self._pool.get_num_free_blocks())

    def lend(self, block_ids: Iterable[int]) -> None:
        """Takes blocks out of use while requests of narrower groups stand still in them."""
        blocks = [self._pool.blocks[block_id] for block_id in sorted(block_ids)]
        self._pool.touch(blocks)
        self.lent += blocks

    def take_back(self) -> None:
        """Ends all loans."""
        self._pool.free_blocks(reversed(self.lent))
        self.lent = []

    @property
    def num_blocks(self) -> int:
        """Blocks for KV; vLLM keeps one back."""
        return int(self._pool.num_gpu_blocks) - 1

    @property
    def most_tokens(self) -> int:
        """Longest request that fits when nothing stands in its way."""
        return min(self.num_blocks * self.block_size, int(self.max_model_len))

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def load_tokens(self) -> int:
        """Tokens to prefill and tokens in the KV cache."""
        return sum(request.num_tokens for request in self.requests.values())

    def figures(self) -> dict[str, Any]:
        """The group's row, in the words of `envs.interface.state.ENGINE_STATE_DTYPE`."""
        running, queued = self.running, self.queued
        decoding = [r for r in running if r.num_output_tokens and r.num_computed_tokens >= r.num_tokens - 1]
        prefilling = [r for r in running if r not in decoding]
        busy_s = time.monotonic() - self._began_s if self.batch is not None else 0.0
        return {
            "first": self.group.first,
            "length": self.group.length,
            "num_running": len(running),
            "num_prefilling": len(prefilling),
            "num_waiting": len(queued),
            "pending_prefill_tokens": sum(
                r.num_tokens - r.num_computed_tokens for r in [*prefilling, *queued]
            ),
            "context_tokens": sum(r.num_computed_tokens for r in decoding),
            "kv_used_blocks": self.num_blocks - self.free_blocks - len(self.lent),
            "kv_capacity_blocks": self.num_blocks - len(self.lent),
            "block_size": self.block_size,
            "preemptions": self.preemptions,
            "generated_tokens": self.generated_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "busy_s": self.busy_s + busy_s,
        }


def _begin_anew(request: Request, status: RequestStatus, log_stats: bool) -> None:
    """Turns a request that was let go into one that waits, with the tokens it has generated so far."""
    had_kv = status in (RequestStatus.RUNNING, RequestStatus.PREEMPTED)
    request.status = RequestStatus.WAITING if had_kv else status
    request.num_computed_tokens = request.num_in_flight_tokens = 0
    request.num_output_placeholders = request.num_stale_output_tokens = 0
    request.is_prefill_chunk = False
    request.spec_token_ids = []
    if status == RequestStatus.RUNNING:
        request.num_preemptions += 1
        if log_stats:
            request.record_event(EngineCoreEventType.PREEMPTED)
