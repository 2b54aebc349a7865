"""The engine's scheduler: one of vLLM's own for every aligned group, a pool of requests before them, and the switches.

A turn (`schedule`, the executor, `update_from_output`) starts an iteration on every serving group that has none running
and waits for the first to come back, so that ranks in DP never wait for each other.

What becomes of requests at a switch, by mode (section 5.2; source: ours where the text is silent):

* those without KV go back to the pool at once and are routed anew;
* SEQUENTIAL: running ones finish first, in the old groups;
* SOFT: likewise; members that are done serve new requests meanwhile, which are recomputed after the switch;
* HARD: groups that are merged keep their running requests and their KV, which stand still until the layout has these
  groups again; those of a group that is split are recomputed. A request that stands still in a group which a later
  layout leaves out for good (its ranks serve in narrower groups) is recomputed there.

Blocks of requests that stand still are lent: the wider group's allocator leaves them alone. It takes a block only if it
is free on all of its ranks, as vLLM gives all ranks of a group the same block ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request, RequestStatus

from .book import Mode, Switch, SwitchBook
from .group_scheduler import GroupScheduler
from .groups import Group, all_groups
from .kv import check_kv, config_of
from .messages import Entry, SwitchingOutput, SwitchingResult
from .routing import Candidate, Router
from .settings import SwitchingSettings
from .supported import check_config

_ORDINARY_PRIORITY = 0
_SEED_STRIDE = 1_000_003  # keeps the seeds of successive switches apart for any number of ranks


class SwitchingScheduler(SchedulerInterface):
    """Schedules a TP engine whose ranks serve in changing groups; arguments as vLLM's scheduler takes them.

    Raises:
        ValueError: the engine is configured in a way that cannot switch, or the plugin's settings are wrong.
    """

    connector = None
    ec_connector = None

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: Any,
        block_size: int,
        hash_block_size: int | None = None,
        include_finished_set: bool = False,
        log_stats: bool = False,
        **kwargs: Any,
    ) -> None:
        check_config_of_engine(vllm_config)
        check_kv(kv_cache_config, None)
        world = vllm_config.parallel_config.tensor_parallel_size
        settings = SwitchingSettings.of(vllm_config.additional_config, world)
        self.log_stats, self._seed = log_stats, vllm_config.model_config.seed
        self._priority = vllm_config.scheduler_config.policy == "priority"
        self.nodes = {
            group: GroupScheduler(
                group,
                vllm_config=vllm_config,
                kv_cache_config=config_of(kv_cache_config, group.length, world),
                structured_output_manager=structured_output_manager,
                block_size=block_size * group.length // world,
                include_finished_set=False,
                log_stats=log_stats,
                **kwargs,
            )
            for group in all_groups(world)
        }
        self.book = SwitchBook(world, (world,))
        self.router = Router(settings.router)
        self.pool: dict[str, Request] = {}  # requests that no group has, in order of arrival
        self._where: dict[str, Group] = {}  # group of every other request
        self._pause_state = PauseState.UNPAUSED
        if settings.layout is not None:
            self.set_layout(list(settings.layout), int(Mode.SEQUENTIAL))

    # -- switching -----------------------------------------------------------------------------------------------------

    def set_layout(self, layout: list[int], mode: int) -> list[int]:
        """Begins to switch to a layout.

        Args:
            layout: lengths of the groups, left to right.
            mode: what happens to running requests, see `Mode`.

        Returns:
            Numbers of the switches begun; none where the layout is the target already.

        Raises:
            ValueError: not a layout, not a mode, or a region is on its way elsewhere.
        """
        if mode not in list(Mode):
            raise ValueError(f"mode must be one of {', '.join(m.name.lower() for m in Mode)}, got {mode}")
        running = {group: [r.request_id for r in self.nodes[group].running] for group in self.book.groups}
        begun = self.book.ask(tuple(layout), Mode(mode), time.monotonic(), running)
        for switch in begun:
            for group in switch.source:
                self._to_pool(self.nodes[group], self.nodes[group].queued)
        return [switch.number for switch in begun]

    def status(self) -> dict[str, Any]:
        """Layout, switches, and a row for every aligned group, narrow ones first."""
        return {
            "world": self.book.world,
            "layout": list(self.book.layout),
            "target_layout": [group.length for group in self.book.target],
            "now_s": time.monotonic(),
            "open": [switch.report() for switch in self.book.open],
            "done": [switch.report() for switch in self.book.done],
            "num_pooled": len(self.pool),
            "pooled_tokens": sum(request.num_prompt_tokens for request in self.pool.values()),
            "groups": [
                node.figures() | {"status": self._status_of(group)} for group, node in self.nodes.items()
            ],
        }

    def _status_of(self, group: Group) -> str:
        if group not in self.book.groups:
            return "paused" if self.nodes[group].running else "inactive"
        if self.book.draining(group) is None:
            return "active"
        return "speculative" if self.book.admits(group) else "draining"

    def _enter_ready(self) -> tuple[Entry, ...]:
        """Carries out every switch that is at a safe point."""
        busy = [group for group in self.book.groups if self.nodes[group].batch is not None]
        return tuple(entry for switch in self.book.ready(busy) for entry in self._carry_out(switch))

    def _carry_out(self, switch: Switch) -> list[Entry]:
        for group in switch.source:
            node = self.nodes[group]
            self._to_pool(node, node.queued)
            if switch.merges and switch.mode == Mode.HARD:
                switch.paused += len(node.running)
            else:
                switch.recomputed += self._to_pool(node, node.running)
            node.take_back()
        for group, node in self.nodes.items():
            left_out = not any(target.contains(group) for target in switch.target)
            if switch.region.contains(group) and left_out and node.running:
                switch.recomputed += self._to_pool(node, node.running)
        for group in switch.target:
            self._lend(group)
        switch.queued = len(self.pool)
        self.book.wait_for_entry(switch, time.monotonic())
        return [
            Entry(switch.number, group, self._seed + _SEED_STRIDE * switch.number) for group in switch.target
        ]

    def _lend(self, group: Group) -> None:
        """Keeps a group's allocator off the blocks of requests that stand still inside it."""
        inside = [node for other, node in self.nodes.items() if other != group and group.contains(other)]
        self.nodes[group].lend(set().union(*(node.held_blocks() for node in inside)))

    def _to_pool(self, node: GroupScheduler, requests: Iterable[Request]) -> int:
        leaving = node.hand_over(list(requests))
        for request in leaving:
            del self._where[request.request_id]
            self.pool[request.request_id] = request
        return len(leaving)

    # -- routing -------------------------------------------------------------------------------------------------------

    def _place_pooled(self) -> None:
        """Offers the pool to the groups that take requests: by priority where the queues go by it, then by arrival."""
        if not self.pool or self._pause_state != PauseState.UNPAUSED:
            return
        candidates = {candidate.group: candidate for candidate in self._candidates()}
        if not candidates:
            return
        for request in sorted(self.pool.values(), key=self._order):
            group = self.router.choose(list(candidates.values()), _most_tokens(request), _urgent(request))
            if group is not None:
                del self.pool[request.request_id]
                self._where[request.request_id] = group
                self.nodes[group].place(request)
                candidates[group] = candidates[group].with_one_more(request.num_tokens)

    def _order(self, request: Request) -> tuple[int, float]:
        return (request.priority if self._priority else _ORDINARY_PRIORITY, request.arrival_time)

    def _candidates(self) -> list[Candidate]:
        nodes = [self.nodes[group] for group in sorted(self.book.groups) if self.book.admits(group)]
        return [Candidate(n.group, len(n.requests), n.load_tokens, n.most_tokens) for n in nodes]

    # -- vLLM's interface ----------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SwitchingOutput:
        """Carries out the switches that may take place, and starts an iteration on every idle group."""
        entries = self._enter_ready()
        if entries:  # on their way while the next turn schedules
            return _together(entries, ())
        self._place_pooled()
        startable = [self.nodes[group] for group in sorted(self.book.groups) if self.book.may_start(group)]
        batches = [node.start() for node in startable if node.batch is None and node.has_requests()]
        return _together(entries, tuple(batch for batch in batches if batch is not None))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: SwitchingResult
    ) -> dict[int, EngineCoreOutputs]:
        """Takes what has come back: confirmations of switches, and tokens of the groups that are done."""
        for number, rank, enter_ms, at_s in model_runner_output.confirmed:
            if number:
                self.book.confirm(number, rank, enter_ms, at_s)
        merged: dict[int, EngineCoreOutputs] = {}
        for group, output in model_runner_output.outputs.items():
            before = set(self.nodes[group].requests)
            for client, outputs in self.nodes[group].finish(output).items():
                _add(merged, client, outputs)
            self._forget(before - set(self.nodes[group].requests))
        for outputs in merged.values():
            if outputs.scheduler_stats is not None:
                outputs.scheduler_stats = self._stats(outputs.scheduler_stats)
        return merged

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._where.pop(request_id, None)
            self.book.over(request_id)

    def add_request(self, request: Request) -> None:
        """A request joins the pool."""
        if request.request_id in self._where:  # the next chunk of a streamed prompt
            self.nodes[self._where[request.request_id]].add_request(request)
            return
        self.pool[request.request_id] = request
        if self.log_stats:
            request.record_event(EngineCoreEventType.QUEUED)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Ends requests from outside; None: all of them."""
        if request_ids is None:
            request_ids = [*self.pool, *self._where]
        wanted = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        ended = [self.pool.pop(request_id) for request_id in wanted if request_id in self.pool]
        for request in ended:
            request.status = finished_status
        for group, node in self.nodes.items():
            here = [request_id for request_id in wanted if self._where.get(request_id) == group]
            ended += node.finish_requests(here, finished_status)
            self._forget(here)
        return ended

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> None:
        """None: each batch carries its own."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """There are no drafts: speculative decoding is refused at start."""

    def update_draft_token_ids_in_output(
        self, draft_token_ids: Any, scheduler_output: SchedulerOutput
    ) -> None:
        """There are no drafts."""

    def get_request_counts(self) -> tuple[int, int]:
        """Running requests, those that stand still included, and waiting ones."""
        counts = [node.get_request_counts() for node in self.nodes.values()]
        return sum(running for running, _ in counts), sum(waiting for _, waiting in counts) + len(self.pool)

    def get_num_unfinished_requests(self) -> int:
        """Requests that are here and may run."""
        return 0 if self._pause_state == PauseState.PAUSED_ALL else sum(self.get_request_counts())

    def has_finished_requests(self) -> bool:
        """Whether a serving group has yet to tell its ranks of requests that are over."""
        return any(self.nodes[group].has_finished_requests() for group in self.book.groups)

    def has_requests(self) -> bool:
        """Whether a turn would do anything: requests that stand still, or that nothing can hold now, do not count."""
        serving = [self.nodes[group] for group in self.book.groups]
        if self.book.open or any(node.batch is not None or node.has_requests() for node in serving):
            return True
        if self._pause_state != PauseState.UNPAUSED:
            return False
        longest = max((candidate.most_tokens for candidate in self._candidates()), default=-1)
        return any(_most_tokens(request) <= longest for request in self.pool.values())

    @property
    def pause_state(self) -> PauseState:
        """Whether scheduling is suspended."""
        return self._pause_state

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Suspends or resumes scheduling in every group."""
        self._pause_state = pause_state
        for node in self.nodes.values():
            node.set_pause_state(pause_state)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """There is no prefix cache; running requests are preempted if that is asked for."""
        nodes = [node for node in self.nodes.values() if reset_running_requests or not node.requests]
        done = [node.reset_prefix_cache(reset_running_requests) for node in nodes]
        return all(done)

    def reset_encoder_cache(self) -> None:
        """Resets what encoders have cached."""
        for node in self.nodes.values():
            node.reset_encoder_cache()

    def get_kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, over ranks; blocks of requests that stand still are in use."""
        serving = [self.nodes[group] for group in self.book.groups]
        used = sum((node.num_blocks - node.free_blocks) * node.group.length for node in serving)
        return used / sum(node.num_blocks * node.group.length for node in serving)

    def make_stats(self) -> SchedulerStats | None:
        """Figures of the whole engine."""
        return self._stats(SchedulerStats()) if self.log_stats else None

    def _stats(self, stats: SchedulerStats) -> SchedulerStats:
        running, waiting = self.get_request_counts()
        return replace(
            stats,
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_skipped_waiting_reqs=0,
            kv_cache_usage=self.get_kv_cache_usage(),
        )

    def shutdown(self) -> None:
        """Ends every group's scheduler."""
        for node in self.nodes.values():
            node.shutdown()


def check_config_of_engine(config: Any) -> None:
    """`check_config`; and the executor and the workers must be the plugin's too."""
    check_config(config)
    expected = (
        (
            "--distributed-executor-backend",
            config.parallel_config.distributed_executor_backend,
            "SwitchingExecutor",
        ),
        ("--worker-extension-cls", config.parallel_config.worker_extension_cls, "SwitchingWorker"),
    )
    for option, given, name in expected:
        called = given if isinstance(given, str) else getattr(given, "__name__", str(given))
        if called.rpartition(".")[2] != name:
            raise ValueError(
                f"SwitchingScheduler needs {option} to name the plugin's {name}, got {called or 'none'!r}"
            )


def _most_tokens(request: Request) -> int:
    """What a request may grow to."""
    return int(request.num_prompt_tokens + request.max_tokens)


def _urgent(request: Request) -> bool:
    """Whether a request is of the best priority; vLLM's lowest number comes first."""
    return bool(request.priority <= _ORDINARY_PRIORITY)


def _add(merged: dict[int, EngineCoreOutputs], client: int, outputs: EngineCoreOutputs) -> None:
    """Adds a group's outputs to those of others for the same client; the statistics are those of the last."""
    if client not in merged:
        merged[client] = outputs
        return
    known = merged[client]
    known.outputs += outputs.outputs
    if outputs.scheduler_stats is not None:
        known.scheduler_stats = outputs.scheduler_stats


def _together(entries: tuple[Entry, ...], batches: tuple[Any, ...]) -> SwitchingOutput:
    """All that starts in a turn, in the form that vLLM's loop logs."""
    outputs = [batch.output for batch in batches]
    cached = [output.scheduled_cached_reqs for output in outputs]
    everything = {
        field.name: [item for part in cached for item in getattr(part, field.name)]
        for field in fields(CachedRequestData)
        if field.name not in ("resumed_req_ids", "all_token_ids")
    }
    return SwitchingOutput(
        scheduled_new_reqs=[new for output in outputs for new in output.scheduled_new_reqs],
        scheduled_cached_reqs=CachedRequestData(
            resumed_req_ids=set().union(*(part.resumed_req_ids for part in cached)),
            all_token_ids={},
            **everything,
        ),
        num_scheduled_tokens={k: v for output in outputs for k, v in output.num_scheduled_tokens.items()},
        total_num_scheduled_tokens=sum(output.total_num_scheduled_tokens for output in outputs),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        entries=entries,
        batches=batches,
    )
