"""The plugin's parts that need no vLLM: views, routing, settings, words, what it supports."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PathDistribution
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from serving_gym.envs.live.switching.install import NAME, arguments, environment, install, main
from serving_gym.envs.live.switching.plugin.book import Mode
from serving_gym.envs.live.switching.plugin.endpoint import parse
from serving_gym.envs.live.switching.plugin.groups import Group
from serving_gym.envs.live.switching.plugin.routing import Candidate, Router
from serving_gym.envs.live.switching.plugin.settings import SwitchingSettings
from serving_gym.envs.live.switching.plugin.supported import check_config, check_version
from serving_gym.envs.live.switching.plugin.weights import (
    Kinds,
    active,
    distinct_bytes,
    expect_pieces,
    interleave,
    interleaved_rows,
    restore_order,
    share,
)

# -- weights -----------------------------------------------------------------------------------------------------------


def test_rows_of_a_fused_projection_are_interleaved_by_piece() -> None:
    # Q of 4 rows, K and V of 2, two pieces: Q0 Q1 K0 V0 | Q2 Q3 K1 V1
    assert interleaved_rows([4, 2, 2], 2).tolist() == [0, 1, 4, 6, 2, 3, 5, 7]
    with pytest.raises(ValueError, match="do not divide over 4"):
        interleaved_rows([4, 2, 2], 4)


@pytest.mark.parametrize(("pieces", "held"), [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_outputs_come_back_in_the_usual_order(pieces: int, held: int) -> None:
    """A rank that holds some pieces gives [Q | K | V] of its heads, whatever the degree."""
    segments = [16, 8, 8]
    order, degree = interleaved_rows(segments, pieces), pieces // held
    for rank in range(degree):
        stored = active(order, 0, rank, degree)
        found = restore_order(stored[None].float(), [size // degree for size in segments], held)[0].long()
        expected = []
        for start, size in ((0, 16), (16, 8), (24, 8)):
            share_ = size // degree
            expected += range(start + rank * share_, start + (rank + 1) * share_)
        assert found.tolist() == expected


class Column(nn.Module):
    """A column-parallel layer as vLLM's look: (outputs, inputs), several projections at once."""

    def __init__(self, inputs: int, sizes: list[int], bias: bool = True) -> None:
        super().__init__()
        self.output_partition_sizes = sizes
        self.weight = nn.Parameter(torch.randn(sum(sizes), inputs))
        self.bias = nn.Parameter(torch.randn(sum(sizes))) if bias else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return nn.functional.linear(x, self.weight, self.bias), None


class Row(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return nn.functional.linear(x, self.weight), None


class Mlp(nn.Module):
    """Gate, up and down over `degree` ranks, behind a norm that every rank has whole."""

    def __init__(self, degree: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.randn(6))
        self.embedding = nn.Embedding(8 // degree, 6)
        self.gate_up = Column(6, [8 // degree, 8 // degree])
        self.down = Row(8 // degree, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both, _ = self.gate_up(x * self.norm)
        gate, up = both.chunk(2, dim=-1)
        return self.down(gate.sigmoid() * up)[0]


KINDS = Kinds(Column, Row, nn.Embedding)


@pytest.mark.parametrize("world", [2, 4])
def test_every_degree_computes_the_same_from_one_copy(world: int) -> None:
    torch.manual_seed(0)
    whole, x = Mlp(1), torch.randn(5, 6)
    expected, size = whole(x).detach().clone(), distinct_bytes([whole])
    interleave(whole, KINDS, world)
    models = [whole]
    degree = 2
    while degree <= world:
        shards = [Mlp(degree) for _ in range(degree)]
        for rank, shard in enumerate(shards):
            share(whole, shard, KINDS, rank, degree)
            expect_pieces(shard, KINDS, world // degree)
        assert torch.allclose(sum(shard(x) for shard in shards), expected, atol=1e-5)
        models += shards
        degree *= 2
    expect_pieces(whole, KINDS, world)
    assert torch.allclose(whole(x), expected, atol=1e-6)
    assert distinct_bytes(models) == size
    # what one rank changes is changed for all: they are views
    whole.down.weight.data.zero_()
    assert all(torch.equal(model(x), torch.zeros(5, 6)) for model in models)


def test_what_cannot_be_sharded_is_named() -> None:
    whole, shard = Mlp(1), Mlp(2)
    shard.norm = nn.Parameter(torch.randn(3))
    with pytest.raises(ValueError, match=r"cannot tell how norm of shape \(6,\) is sharded"):
        share(whole, shard, KINDS, 0, 2)
    with pytest.raises(ValueError, match="does not divide by degree 4"):
        active(torch.zeros(6, 2), 0, 0, 4)


# -- routing -----------------------------------------------------------------------------------------------------------


def candidates(*loads: tuple[int, int, int, int]) -> list[Candidate]:
    """(first, length, requests, tokens); each holds 100 tokens a rank."""
    return [Candidate(Group(f, n), requests, tokens, 100 * n) for f, n, requests, tokens in loads]


@pytest.mark.parametrize(
    ("router", "urgent", "expected"),
    [
        ("jsq", False, Group(0, 2)),  # 50 tokens over 2 ranks
        ("least_requests", False, Group(3, 1)),
        ("affinity", True, Group(0, 2)),
        ("affinity", False, Group(2, 1)),  # the narrower ones, jsq among them
    ],
)
def test_routers(router: str, urgent: bool, expected: Group) -> None:
    state = candidates((0, 2, 5, 50), (2, 1, 4, 30), (3, 1, 1, 60))
    assert Router(router).choose(state, 10, urgent) == expected


def test_round_robin_takes_turns_and_skips_what_does_not_fit() -> None:
    router, state = Router("round_robin"), candidates((0, 1, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0))
    turns = [router.choose(state, 10, False) for _ in range(4)]
    assert turns == [Group(0, 1), Group(1, 1), Group(2, 2), Group(0, 1)]
    assert router.choose(state, 150, False) == Group(2, 2)
    assert router.choose(state, 201, False) is None


# -- words -------------------------------------------------------------------------------------------------------------


def test_settings() -> None:
    assert SwitchingSettings.of({}, 2) == SwitchingSettings()
    given = {NAME: {"layout": [1, 1], "router": "affinity"}}
    assert SwitchingSettings.of(given, 2) == SwitchingSettings((1, 1), "affinity")
    with pytest.raises(ValueError, match="knows no 'routr'"):
        SwitchingSettings.of({NAME: {"routr": "jsq"}}, 2)
    with pytest.raises(ValueError, match="router must be one of"):
        SwitchingSettings.of({NAME: {"router": "best"}}, 2)
    with pytest.raises(ValueError, match="does not add up to 2 ranks"):
        SwitchingSettings.of({NAME: {"layout": [4]}}, 2)


def test_words_of_a_post() -> None:
    assert parse({"layout": [1, 1]}) == ([1, 1], Mode.SEQUENTIAL)
    assert parse({"layout": [2], "mode": "hard"}) == ([2], Mode.HARD)
    for wrong in (
        [1, 1],
        {"mode": "hard"},
        {"layout": [2], "now": True},
        {"layout": "2"},
        {"layout": [True]},
    ):
        with pytest.raises(ValueError, match="layout"):
            parse(wrong)
    with pytest.raises(ValueError, match="mode must be"):
        parse({"layout": [2], "mode": "at once"})


def test_the_release_is_pinned() -> None:
    check_version("0.32.0")
    check_version("0.32.0+cpu")
    with pytest.raises(RuntimeError, match=r"written against vLLM 0\.32\.0.*this is vLLM 0\.33\.1"):
        check_version("0.33.1")


def supported(**changed: Any) -> SimpleNamespace:
    """A configuration that can switch, as vLLM's looks."""
    words: dict[str, Any] = {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1,
        "enable_expert_parallel": False, "enforce_eager": True, "runner_type": "generate",
        "is_encoder_decoder": False, "is_multimodal_model": False, "is_hybrid": False, "quant_config": None,
        "lora_config": None, "speculative_config": None, "kv_transfer_config": None, "block_size": 32,
        "enable_prefix_caching": False, "async_scheduling": False, "use_v2_model_runner": False, "kv_heads": 4,
    } | changed  # fmt: skip
    part = SimpleNamespace(**words, get_total_num_kv_heads=lambda: words["kv_heads"])
    groups = dict.fromkeys(("parallel_config", "model_config", "cache_config", "scheduler_config"), part)
    return SimpleNamespace(**words, **groups)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensor_parallel_size": 3}, "--tensor-parallel-size of 2, 4, 8"),
        ({"kv_heads": 1}, "KV heads"),
        ({"enforce_eager": False}, "--enforce-eager"),
        ({"enable_prefix_caching": True}, "--no-enable-prefix-caching"),
        ({"async_scheduling": True}, "--no-async-scheduling"),
        ({"quant_config": object()}, "without quantisation"),
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 1"),
    ],
)
def test_what_cannot_switch_is_refused_in_a_sentence(changed: dict[str, Any], said: str) -> None:
    check_config(supported())
    with pytest.raises(ValueError, match=said) as error:
        check_config(supported(**changed))
    assert str(error.value).startswith(f"{NAME} needs ")


def test_an_installed_plugin_is_found_by_its_entry_points(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    assert install(tmp_path / "site") == site  # again, over itself
    found = PathDistribution(site / "serving_gym_switching-0.1.dist-info").entry_points
    assert {(entry.group, entry.value) for entry in found} == {
        ("vllm.general_plugins", f"{NAME}.hooks:register"),
        ("vllm.endpoint_plugins", f"{NAME}.endpoint:SwitchingEndpoint"),
    }
    for entry in found:
        assert (site / entry.module.replace(".", "/")).with_suffix(".py").is_file()
    assert environment(site)["PYTHONPATH"] == str(site)


def test_installing_says_how_a_server_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "site"), "4"]) == 0
    variables, options = capsys.readouterr().out.splitlines()
    assert f"VLLM_PLUGINS={NAME}" in variables
    assert options == shlex.join(arguments(4))
    given = dict(pairwise(arguments(4, (2, 2), "affinity")))
    assert given["--tensor-parallel-size"] == "4"
    settings = SwitchingSettings.of(json.loads(given["--additional-config"]), 4)
    assert settings == SwitchingSettings((2, 2), "affinity")
    assert main([]) == 2
