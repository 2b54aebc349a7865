"""Drives vLLM's own scheduler through scenarios; run by the Python of a vLLM installation, of which it needs no more.

    python vllm_driver.py SCENARIOS TRACES

Both are JSON lines. The first line of TRACES names the vLLM; then comes a trace a scenario. No model is loaded and no
engine is started: `Scheduler` decides, and what the model would have computed is read from the scenario.

A step is what `EngineCore.step` does: requests and aborts that have come in, `schedule`, aborts that come in while the
model runs, `update_from_output`. Where `schedule` preempts and schedules nothing, vLLM runs an empty step and begins
the next; here both are one step, since the empty one takes no time.

With asynchronous scheduling it is what `EngineCore.step_with_batch_queue` does with a queue of two batches: the next
batch is scheduled while a step runs, before whatever comes in meanwhile, and only if there is nothing to schedule when
the step has ended. What a step "begun" shows is the state in which vLLM is when it begins: after the update of the step
before, and after its own scheduling.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PYTHONHASHSEED", "0")

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "ffn_dim": 64,
    "word_embed_proj_dim": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}
MOST_STEPS = 5000


def base_config() -> VllmConfig:
    """A configuration of vLLM around a model of which there is only a config.json."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0)
    return VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig.default_factory(max_model_len=4096, max_num_batched_tokens=4096),
        device_config=DeviceConfig("cpu"),
    )


def build_scheduler(base: VllmConfig, settings: dict[str, Any]) -> Scheduler:
    """vLLM's scheduler with a scenario's settings; what a scenario does not name keeps vLLM's default."""
    config = copy.copy(base)
    config.model_config = copy.copy(base.model_config)
    config.model_config.max_model_len = settings["max_model_len"]
    config.scheduler_config = SchedulerConfig.default_factory(
        max_model_len=settings["max_model_len"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        max_num_seqs=settings["max_num_seqs"],
        enable_chunked_prefill=settings["chunked_prefill"],
        long_prefill_token_threshold=settings["long_prefill_token_threshold"],
        scheduler_reserve_full_isl=settings["reserve_full_isl"],
        policy=settings["policy"],
        async_scheduling=settings["async_scheduling"],
    )
    block_size = settings["block_size"]
    config.cache_config = CacheConfig(block_size=block_size, enable_prefix_caching=settings["prefix_caching"])
    config.cache_config.num_gpu_blocks = settings["num_blocks"]
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kind = AsyncScheduler if settings["async_scheduling"] else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=settings["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=False,
    )


class Drive:
    """One scenario through one scheduler."""

    def __init__(self, base: VllmConfig, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        settings = scenario["settings"]
        self.scheduler = build_scheduler(base, settings)
        self.hasher = None
        if settings["prefix_caching"]:
            self.hasher = get_request_block_hasher(settings["block_size"], sha256)
        self.requests: list[Request] = []
        self.evictions = 0
        self._count_evictions()

    def _count_evictions(self) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        evict = pool._maybe_evict_cached_block

        def counted(block: Any) -> bool:
            evicted = evict(block)
            self.evictions += evicted
            return evicted

        pool._maybe_evict_cached_block = counted

    def new_request(self, number: int) -> Request:
        row = self.scenario["requests"][number]
        prompt = row["num_prompt_tokens"]
        sampling = SamplingParams(
            max_tokens=len(row["tokens"]) - prompt, ignore_eos=True, temperature=0.0, detokenize=False
        )
        return Request(
            request_id=str(number),
            prompt_token_ids=list(row["tokens"][:prompt]),
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(row["arrival"]),
            priority=row["priority"],
            block_hasher=self.hasher,
        )

    def run_async(self) -> list[dict[str, Any]]:
        """The scenario's trace where the next batch is scheduled while a step runs."""
        steps: list[dict[str, Any]] = []
        self.add(0)
        batch, preemptions, evictions = None, [0] * len(self.scenario["requests"]), 0
        for step in range(MOST_STEPS):
            batch = batch or self.schedule()
            begun = self.state()
            counts = [request.num_preemptions for request in self.requests]
            preempted = [[i, n - preemptions[i]] for i, n in enumerate(counts) if n > preemptions[i]]
            preemptions[: len(counts)] = counts
            begun_evictions, evictions = self.evictions - evictions, self.evictions
            ahead = self.schedule(ahead=True) if batch else None
            self.add(step + 1)
            alive = [request for request in self.requests if request.request_id in self.scheduler.requests]
            if batch:
                self.scheduler.update_from_output(*batch[:2])
            if ahead and not ahead[2]:  # nothing to do before that was known
                self.scheduler.update_from_output(*ahead[:2])
                ahead = None
            finished = [int(request.request_id) for request in alive if request.is_finished()]
            left = [number for number in begun["running"] if number not in finished]
            steps.append(
                {
                    "step": step,
                    "scheduled": batch[2] if batch else [],
                    "preempted": preempted,
                    "evictions": begun_evictions,
                    "begun": begun,
                    "finished": finished,
                    "ended": {"running": left},
                }
            )
            batch = ahead
            if len(self.requests) == len(self.scenario["requests"]) and not self.scheduler.requests:
                return steps
        raise RuntimeError(f"scenario {self.scenario['seed']} has not ended after {MOST_STEPS} steps")

    def schedule(self, ahead: bool = False) -> tuple[Any, ModelRunnerOutput, list[list[int]]]:
        """A batch, what the model will make of it, and what is scheduled; empty only where nothing can be done."""
        while True:
            output = self.scheduler.schedule()
            produced = self.model_output(output)
            if ahead or output.num_scheduled_tokens or not output.preempted_req_ids:
                return output, produced, self.scheduled(output)
            self.scheduler.update_from_output(output, produced)

    def run(self) -> list[dict[str, Any]]:
        """The scenario's trace: what each step did and left behind."""
        steps = []
        last = len(self.scenario["requests"])
        for step in range(MOST_STEPS):
            self.add(step)
            self.abort(step, during=False)
            steps.append(self.step(step))
            if len(self.requests) == last and not self.scheduler.requests:
                return steps
        raise RuntimeError(f"scenario {self.scenario['seed']} has not ended after {MOST_STEPS} steps")

    def add(self, step: int) -> None:
        """Lets the requests of a step come in."""
        rows = self.scenario["requests"]
        while len(self.requests) < len(rows) and rows[len(self.requests)]["step"] == step:
            self.requests.append(self.new_request(len(self.requests)))
            self.scheduler.add_request(self.requests[-1])

    def abort(self, step: int, during: bool) -> None:
        for row in self.scenario["aborts"]:
            if row["step"] == step and row["during"] == during:
                self.scheduler.finish_requests(str(row["request"]), RequestStatus.FINISHED_ABORTED)

    def step(self, step: int) -> dict[str, Any]:
        before = [request.num_preemptions for request in self.requests]
        evictions = self.evictions
        output = self.scheduler.schedule()
        while not output.num_scheduled_tokens and output.preempted_req_ids:
            self.scheduler.update_from_output(output, self.model_output(output))
            output = self.scheduler.schedule()
        scheduled = self.scheduled(output)
        preempted = [
            [number, request.num_preemptions - old]
            for number, (request, old) in enumerate(zip(self.requests, before, strict=True))
            if request.num_preemptions > old
        ]
        begun, evictions = self.state(), self.evictions - evictions
        self.abort(step, during=True)
        produced = self.model_output(output)
        alive = [request for request in self.requests if request.request_id in self.scheduler.requests]
        self.scheduler.update_from_output(output, produced)
        return {
            "step": step,
            "scheduled": scheduled,
            "preempted": preempted,
            "evictions": evictions,
            "begun": begun,
            "finished": [int(request.request_id) for request in alive if request.is_finished()],
            "ended": self.state(),
        }

    def scheduled(self, output: Any) -> list[list[int]]:
        """Request, first token and number of tokens of each that is scheduled."""
        return [
            [int(name), self.requests[int(name)].num_computed_tokens - tokens, tokens]
            for name, tokens in output.num_scheduled_tokens.items()
        ]

    def model_output(self, output: Any) -> ModelRunnerOutput:
        """What the model returns: the scenario's next token of every request whose tokens are all computed.

        The last one of those that are in flight is this step's own.
        """
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.requests[int(name)]
            in_flight = max(request.num_output_placeholders - 1, 0)
            due = request.num_computed_tokens == request.num_tokens + in_flight
            row = self.scenario["requests"][int(name)]
            sampled.append([row["tokens"][request.num_tokens + in_flight]] if due else [])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def state(self) -> dict[str, Any]:
        """Queue, batch and pool."""
        scheduler = self.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        running = [int(request.request_id) for request in scheduler.running]
        tables = [scheduler.kv_cache_manager.get_block_ids(str(number))[0] for number in running]
        return {
            "running": running,
            "waiting": [int(request.request_id) for request in scheduler.waiting],
            "free_blocks": pool.get_num_free_blocks(),
            "cached_hashes": len(pool.cached_block_hash_to_block),
            "block_tables": zlib.crc32(json.dumps(tables).encode()),
        }


def main(scenarios: str, traces: str) -> None:
    """Drives all scenarios of a file."""
    logging.disable(logging.WARNING)
    init_none_hash(sha256)
    base = base_config()
    with Path(scenarios).open() as source, Path(traces).open("w") as sink:
        sink.write(json.dumps({"vllm": vllm.__version__, "scheduler": Scheduler.__qualname__}) + "\n")
        for line in source:
            drive = Drive(base, json.loads(line))
            trace = drive.run_async() if drive.scenario["settings"]["async_scheduling"] else drive.run()
            sink.write(json.dumps(trace) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
