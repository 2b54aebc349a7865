"""The kernel is compiled once: one version of each function, and a cache that knows all of its files."""

from __future__ import annotations

from types import ModuleType

import pytest
from numba.core.types import unliteral

from serving_gym.envs.simulator.kernel import accounting, engine, gateway, queues, routers, runs, world
from serving_gym.envs.simulator.kernel.compiled import source_stamp
from serving_gym.envs.simulator.kernel.world import advance
from tests.simulator.oracle import Kind, Settings
from tests.simulator.twins import Case, Kernel, Row, Slot

MODULES = (accounting, engine, gateway, queues, routers, runs, world)


def kernel_functions(module: ModuleType) -> dict[str, object]:
    """The numba functions of a module."""
    return {name: value for name, value in vars(module).items() if hasattr(value, "signatures")}


@pytest.mark.parametrize("module", MODULES)
def test_every_cached_function_carries_the_digest_of_all_files(module: ModuleType) -> None:
    assert kernel_functions(module)
    for function in kernel_functions(module).values():
        assert function._cache._cache_file._source_stamp == source_stamp()


def test_worlds_of_any_size_forked_or_grown_share_one_version_of_advance() -> None:
    kind = Kind([10] * 9, [10] * 9, 1, 1, 1, 4, max_num_seqs=8, max_batched_tokens=8)
    for num_engines in (1, 3):
        rows = tuple(Row(number, 3, 20, 20, number % 2) for number in range(20))
        kernel = Kernel(Case((kind,), (Slot(0, 12),) * num_engines, rows, Settings(order="priority")))
        kernel.advance(50)
        kernel.fork().advance(100)
        kernel.pool_running(0)
        kernel.dispatch()
        kernel.advance(10_000)
        assert kernel.world.engines["preemptions"].sum() > 0
        assert len(kernel.world.requests) > 2
    assert len(advance.signatures) == 1
    for module in MODULES:
        for name, function in kernel_functions(module).items():
            versions = {tuple(unliteral(kind) for kind in signature) for signature in function.signatures}
            assert len(versions) <= 1, (
                name
            )  # the replay of vLLM's scheduler compiles some for its only engine
