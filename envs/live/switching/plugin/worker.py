"""What each rank does: a model runner for every degree over one copy of weights and KV, and entering a group.

Each degree has a runner of its own, built by vLLM itself from a configuration that says so, hence with that degree's
layers, attention metadata, block tables and batch; what they share is memory. Entering a group (step 5 of Algorithm 1,
`set_TP_mode` and `reset_TP_mode`) swaps the runner, the configuration and the communicator, and nothing else. A group
that is left keeps its batch, so that requests which stand still (hard preempt) go on where they were.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.nn import functional
from vllm.config import set_current_vllm_config
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.model_executor.layers import linear, utils
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.sampling_params import SamplingType
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from .communicators import CommunicatorPool
from .groups import Group, degrees
from .kv import buffer_of, check_kv, config_of, view_kv_cache
from .messages import Entry, GroupBatch
from .supported import check_config
from .weights import Kinds, distinct_bytes, expect_pieces, interleave, share

_KINDS = Kinds(linear.ColumnParallelLinear, linear.RowParallelLinear, VocabParallelEmbedding)
_REMEMBERED = 4096


@dataclass(frozen=True)
class BatchRecord:
    """An iteration as a rank saw it; times are monotonic seconds, which processes of one machine share."""

    rank: int
    group: Group
    requests: tuple[str, ...]
    tokens: int
    began_s: float
    ended_s: float


class SwitchingWorker:
    """Worker extension: vLLM adds these methods to its worker class."""

    rank: int
    local_rank: int
    device: torch.device
    model_runner: Any
    vllm_config: Any
    model_config: Any
    parallel_config: Any
    cache_config: Any
    switching_process: Any = None  # the WorkerProc around this worker, see `hooks`

    def switching_load(self, load: Any) -> None:
        """Loads the weights whole and builds the runner of every degree on them.

        Args:
            load: vLLM's own `load_model` of this worker.
        """
        check_config(self.vllm_config)
        world = self.vllm_config.parallel_config.tensor_parallel_size
        _keep_linear_weights()
        self.switching_pool = CommunicatorPool(world, self.local_rank)
        self.switching_configs = {degree: _config_of(self.vllm_config, degree) for degree in degrees(world)}
        self.switching_batches_log: deque[BatchRecord] = deque(maxlen=_REMEMBERED)
        runner_class = type(self.model_runner)
        self.switching_runners: dict[int, Any] = {}
        self.model_runner = None
        for degree, config in self.switching_configs.items():
            with self.switching_pool.activated(degree), set_current_vllm_config(config):
                self.switching_runners[degree] = runner_class(config, self.device)
                self._switching_use(degree)
                load(self)
                self._switching_share(degree, world)
        self.switching_enter(Entry(0, Group(0, world), self.model_config.seed))

    def _switching_share(self, degree: int, world: int) -> None:
        """Lets a model that was just loaded use the one copy of the weights, which is that of degree 1."""
        model, whole = self.model_runner.get_model(), self.switching_runners[1].get_model()
        if degree == 1:
            interleave(whole, _KINDS, world)
        else:
            share(whole, model, _KINDS, self.switching_pool.rank(degree), degree)
        expect_pieces(model, _KINDS, world // degree)
        torch.accelerator.empty_cache()

    def _switching_use(self, degree: int) -> None:
        self.vllm_config = self.switching_configs[degree]
        self.parallel_config = self.vllm_config.parallel_config
        self.cache_config = self.vllm_config.cache_config
        self.model_runner = self.switching_runners[degree]

    def switching_available_memory(self) -> int:
        """Bytes left for KV, as vLLM measures them, with the ranks apart: there an iteration takes the most room."""
        widest = max(self.switching_runners)
        self._switching_use(1)
        try:
            with self.switching_pool.activated(1):
                return int(self.determine_available_memory())  # type: ignore[attr-defined]
        finally:
            self._switching_use(widest)

    def switching_initialize(self, kv_cache_configs: list[Any]) -> None:
        """Allocates the KV cache for the widest group, and gives every other degree its view of it.

        Args:
            kv_cache_configs: the KV cache of each rank, as the widest group sees it.
        """
        widest = kv_cache_configs[self.rank]
        world = max(self.switching_runners)
        check_kv(widest, self.cache_config.get_resolved_kv_cache_layout())
        with set_current_vllm_config(self.vllm_config):
            self.initialize_from_config(widest)  # type: ignore[attr-defined]
        buffer = buffer_of(self.switching_runners[world].kv_caches[0])

        for degree, runner in self.switching_runners.items():
            if degree == world:
                continue
            config = self.switching_configs[degree]
            config.cache_config.num_gpu_blocks = widest.num_blocks
            config.cache_config.kv_cache_layout = self.cache_config.kv_cache_layout
            with _viewing(buffer), set_current_vllm_config(config):
                runner.initialize_kv_cache(config_of(widest, degree, world))

    def switching_attach(self, handles: list[Any]) -> None:
        """From now on this rank takes its orders from a queue of its own, so that ranks need not keep step.

        Args:
            handles: one queue a rank.
        """
        process, own = self.switching_process, MessageQueue.create_from_handle(handles[self.rank], 0)
        own.wait_until_ready()
        common = process.rpc_broadcast_mq
        shut_down = common.shutdown

        def shut_down_both() -> None:
            # the monitor of the parent's death knows the common queue alone
            own.shutdown()
            shut_down()

        common.shutdown = shut_down_both
        process.rpc_broadcast_mq = own

    def switching_enter(self, entry: Entry) -> tuple[int, float, float]:
        """Works in a group from now on. Returns the switch's number, the milliseconds it took, and the time, s."""
        began_s = time.perf_counter()
        degree = entry.group.length
        self._switching_use(degree)
        self.switching_pool.activate(degree)
        self.switching_group = entry.group
        set_random_seed(entry.seed + entry.group.first)
        return entry.switch, 1e3 * (time.perf_counter() - began_s), time.monotonic()

    def switching_execute(self, batch: GroupBatch) -> Any:
        """Runs an iteration and samples.

        Raises:
            RuntimeError: the batch is for another group than the one this rank works in.
        """
        if batch.group != self.switching_group:
            raise RuntimeError(
                f"rank {self.rank} works in {self.switching_group}, got a batch of {batch.group}"
            )
        began_s = time.monotonic()
        _resume(self.model_runner, batch)
        output = self.execute_model(batch.output)  # type: ignore[attr-defined]
        if output is None:
            output = self.model_runner.sample_tokens(batch.grammar)
        scheduled = batch.output.num_scheduled_tokens
        if scheduled:
            record = BatchRecord(
                self.rank, batch.group, tuple(scheduled), sum(scheduled.values()), began_s, time.monotonic()
            )
            self.switching_batches_log.append(record)
        return output

    def switching_batches(self) -> list[dict[str, Any]]:
        """The last iterations of this rank."""
        return [asdict(record) for record in self.switching_batches_log]

    def switching_memory(self) -> dict[str, Any]:
        """Bytes of weights and KV: of all degrees together, and of one whole copy."""
        models = [runner.get_model() for runner in self.switching_runners.values()]
        caches = [cache for runner in self.switching_runners.values() for cache in runner.kv_caches]
        shapes = {
            degree: tuple(runner.kv_caches[0].shape) for degree, runner in self.switching_runners.items()
        }
        return {
            "weight_bytes": distinct_bytes(models),
            "whole_weight_bytes": distinct_bytes(models[:1]),
            "kv_buffers": len({cache.untyped_storage().data_ptr() for cache in caches}),
            "kv_shapes": shapes,
        }


@contextmanager
def _viewing(buffer: torch.Tensor) -> Iterator[None]:
    """Inside the block vLLM's runners find their KV cache in a buffer instead of allocating one."""
    allocate = gpu_model_runner.allocate_kv_cache

    def view(config: Any, device: Any, layout: Any, block_sizes: Any = None) -> dict[str, torch.Tensor]:
        return view_kv_cache(buffer, config, layout, block_sizes)

    gpu_model_runner.allocate_kv_cache = view
    try:
        yield
    finally:
        gpu_model_runner.allocate_kv_cache = allocate


def _config_of(config: Any, degree: int) -> Any:
    """VLLM's configuration as a rank of a group of a degree would have been started with.

    Layers register in their configuration's context under the same names, so each degree has a context of its own.
    """
    seen = copy.copy(config)
    seen.parallel_config = copy.copy(config.parallel_config)
    seen.parallel_config.tensor_parallel_size = seen.parallel_config.world_size = degree
    seen.cache_config = copy.copy(config.cache_config)
    seen.cache_config.block_size = config.cache_config.block_size * degree
    seen.compilation_config = copy.copy(config.compilation_config)
    seen.compilation_config.static_forward_context = {}
    if degree > 1:  # its weights become views of those of degree 1
        seen.load_config = replace(config.load_config, load_format="dummy", model_loader_extra_config={})
    return seen


def _keep_linear_weights() -> None:
    """Stops the CPU backend from packing linear weights into copies of their own: a view must stay one."""

    def keep(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = functional.linear  # type: ignore[assignment]

    utils.dispatch_cpu_unquantized_gemm = keep


def _resume(runner: Any, batch: GroupBatch) -> None:
    """Tells a runner of requests that began in another group: to it they are resumed, not new.

    A request with a seed continues its stream.
    """
    output = batch.output
    again = batch.histories.keys() & output.finished_req_ids
    if again:  # was here before; what is over must be gone before the same request comes back
        gone = SchedulerOutput.make_empty()
        gone.finished_req_ids = again
        runner.execute_model(gone)
        output.finished_req_ids -= again
    cached = output.scheduled_cached_reqs
    for new in [new for new in output.scheduled_new_reqs if new.req_id in batch.histories]:
        history = batch.histories[new.req_id]
        runner.requests[new.req_id] = CachedRequestState(
            req_id=new.req_id,
            prompt_token_ids=new.prompt_token_ids,
            prompt_embeds=new.prompt_embeds,
            prompt_is_token_ids=new.prompt_is_token_ids,
            mm_features=new.mm_features,
            sampling_params=new.sampling_params,
            pooling_params=None,
            generator=_generator(new.sampling_params, len(history), runner),
            block_ids=new.block_ids,
            num_computed_tokens=new.num_computed_tokens,
            output_token_ids=list(history),
            lora_request=None,
        )
        output.scheduled_new_reqs.remove(new)
        cached.req_ids.append(new.req_id)
        cached.resumed_req_ids.add(new.req_id)
        cached.new_block_ids.append(new.block_ids)
        cached.num_computed_tokens.append(new.num_computed_tokens)
        cached.num_output_tokens.append(len(history))
        cached.all_token_ids[new.req_id] = [*new.prompt_token_ids, *history]


def _generator(sampling: Any, drawn: int, runner: Any) -> torch.Generator | None:
    """The generator of a request with a seed after some tokens: the sampler makes each draw again."""
    if sampling is None or sampling.sampling_type != SamplingType.RANDOM_SEED:
        return None
    generator = torch.Generator(device=runner.device)
    generator.manual_seed(sampling.seed)
    draw, width = runner.sampler.topk_topp_sampler, runner.input_batch.vocab_size
    for _ in range(drawn):
        draw(torch.zeros(1, width, device=runner.device), {0: generator}, None, None)
    return generator
