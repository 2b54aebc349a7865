"""Servers of other kinds and versions, by the names of their metrics."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest

from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.live.gauges import Gauges, MissingMetricError, find_names, read_cache_config
from serving_gym.envs.live.metric_names import FAMILIES, SGLANG, SWAPPED, TENSORRT_LLM, VLLM
from tests.live.conftest import MakeBackend, stream_of
from tests.live.fake_server import CACHE_CONFIG, Behaviour, FakeServer

# Excerpts of pages, with the labels that each kind of server has.
V0 = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:cpu_cache_usage_perc{model_name="m"} 0.9
vllm:num_preemptions_total{model_name="m"} 4.0
vllm:prompt_tokens_total{model_name="m"} 100.0
vllm:generation_tokens_total{model_name="m"} 50.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="2049",cpu_offload_gb="0"} 1.0
"""
V1 = """vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1025"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1025"} 1.0
"""
LLM_D_SIM = """vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 1
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1024"} 1
"""
SGLANG_PAGE = """sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.25
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 65536.0
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:prompt_tokens_total{model_name="m"} 100.0
sglang:generation_tokens_total{model_name="m"} 50.0
"""
TRTLLM_PAGE = """trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.25
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 2048.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 100.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 50.0
"""
PAGES = {
    "vllm_v0": (V0, "vLLM", Gauges(3, 3, 0.25, 4, 100, 50), 2048 * 16),
    "vllm_v1": (V1, "vLLM", Gauges(4, 1, 0.375, 4, 100, 50), 2048 * 16),
    "llm_d_sim": (LLM_D_SIM, "vLLM", Gauges(3, 1, 0.25, None, None, None), 1023 * 16),
    "sglang": (SGLANG_PAGE, "SGLang", Gauges(3, 1, 0.25, 4, 100, 50), 65536),
    "tensorrt_llm": (TRTLLM_PAGE, "TensorRT-LLM", Gauges(3, 1, 0.25, None, 100, 50), 65536),
}


@pytest.mark.parametrize(("page", "kind", "gauges", "kv_tokens"), PAGES.values(), ids=PAGES)
def test_the_pages_of_every_kind_of_server_are_understood(
    page: str, kind: str, gauges: Gauges, kv_tokens: int
) -> None:
    names = find_names(page, "http://x/metrics")
    assert names.family.server == kind
    assert names.read(page, "http://x") == gauges
    cache = read_cache_config(page, "http://x", names.family)
    assert cache is not None
    assert cache.num_blocks * cache.block_size == kv_tokens
    assert names.describe(page).startswith(f"{kind} metrics: ")


def test_an_unknown_server_is_told_what_is_known() -> None:
    with pytest.raises(
        MissingMetricError, match=r"no known server \(known: vllm: \(vLLM\), sglang: \(SGLang\)"
    ):
        find_names("tgi_queue_size 3\n", "http://x/metrics")


def test_no_name_stands_for_two_quantities() -> None:
    for family in FAMILIES:
        names = [name for alternatives in family.names.values() for name in alternatives]
        assert len(set(names)) == len(names)
        assert all(name.startswith(family.prefix) for name in names)
    assert SWAPPED not in SGLANG.names


def speaking(kind: str, text: str) -> str:
    """A page of the fake server with the names of another kind of server."""
    page, *_ = PAGES[kind]
    names = find_names(page, "http://x").names
    for quantity, alternatives in VLLM.names.items():
        text = text.replace(alternatives[0], names.get(quantity, "other"))
    sizes = [
        line
        for line in page.splitlines()
        if "max_total_num" in line or "max_blocks" in line or "per_block" in line
    ]
    return "\n".join([text.replace(CACHE_CONFIG, "other_info").rstrip("\n"), *sizes]) + "\n"


@pytest.mark.parametrize(
    ("kind", "path"), [("sglang", SGLANG.path), ("tensorrt_llm", TENSORRT_LLM.path), ("llm_d_sim", VLLM.path)]
)
def test_servers_of_other_kinds_are_attached_to_and_serve(
    kind: str, path: str, stack: ExitStack, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "serving_gym")
    behaviour = Behaviour(rewrite_page=lambda text: speaking(kind, text), token_s=0.3)
    server = stack.enter_context(FakeServer(behaviour, page_path=path))
    backend = make_backend(server)
    backend.reset(stream_of(3, gap_s=0.0))
    backend.advance(0.3)
    state = backend.observe()
    assert state.stale == ()
    assert state.engines[0]["num_running"] == 3
    behaviour.token_s = 0.001
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    told = [record.getMessage() for record in caplog.records if " metrics: " in record.getMessage()]
    assert len(told) == 1
    assert ("counted by the client" in told[0]) == (kind != "sglang")
    assert backend.servers[0].kind == PAGES[kind][1]
