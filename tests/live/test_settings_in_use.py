"""Every setting of the `backend` group is used by every environment, or refused."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.schema import BackendConfig, EvaluateConfig
from serving_gym.runners.live import policies
from serving_gym.runners.live.attach import live_backend, live_env
from serving_gym.runners.live.settings_in_use import check_used
from tests.live.conftest import SLOS, stream_of
from tests.live.fake_server import Behaviour, FakeServer
from tests.live.switching.fake import FakeSwitchingServer
from tests.live.test_faults_of_launched import COMMANDS, SWITCHING
from tests.live.test_launched_commands import ROOT, SCRIPT

SHARING = [
    *("env=sharing", "policy=first_fit", "cluster=nodes_tiny_cpu_x2", "workload.params.sizes=[tiny-llama]"),
    *("workload.params.num_models=2", "workload.params.max_tokens=2048", "workload.rate_scale=50"),
]
WORDS = COMMANDS | {"sharing": SHARING}
# They copy and check values, which is no use of them.
COPYING = ("dataclasses", "copy", "serving_gym.runners.configuration.", "serving_gym.calibration.fields")
CHECKING = ("serving_gym.envs.live.settings", "serving_gym.runners.live.settings_in_use", "tests.", "enum")
NAMES = {entry.name for entry in dataclasses.fields(BackendConfig)}
# "name" chooses the backend, and the two next the servers: each is used before an environment is built.
CHOOSING = {"name", "endpoints", "launch"}


def spied(backend: BackendConfig) -> tuple[BackendConfig, set[str]]:
    """A configuration whose fields, and those of its copies, note who reads them."""
    read: set[str] = set()

    class Spied(BackendConfig):
        def __getattribute__(self, name: str) -> Any:
            if name in NAMES:
                reader = str(sys._getframe(1).f_globals.get("__name__"))
                if not reader.startswith((*COPYING, *CHECKING)):
                    read.add(name)
            return super().__getattribute__(name)

    values = {entry.name: getattr(backend, entry.name) for entry in dataclasses.fields(backend)}
    return dataclasses.dataclass(frozen=True)(Spied)(**values), read


def other(value: Any, name: str) -> Any:
    """Another value of a setting."""
    if dataclasses.is_dataclass(value):
        first = next(
            entry.name
            for entry in dataclasses.fields(value)
            if type(getattr(value, entry.name)) in (int, float)
        )
        return dataclasses.replace(value, **{first: getattr(value, first) + 0.1})  # type: ignore[type-var]
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return {"device": "cuda", "slots": ("0", "1")}.get(name, "other")


def is_refused(backend: BackendConfig, name: str, env: str) -> bool:
    with pytest.raises(ValueError, match=rf"backend\.{name}") as caught:
        check_used(dataclasses.replace(backend, **{name: other(getattr(backend, name), name)}), env)
    return "has no effect" in str(caught.value)


@pytest.fixture
def server_words(tmp_path: Path) -> Any:
    @contextlib.contextmanager
    def make(env: str, launch: bool) -> Any:
        if launch:
            script = tmp_path / "python"
            text = SWITCHING if env == "dp_tp" else SCRIPT
            text = textwrap.dedent(text).format(python=sys.executable, root=str(ROOT))
            script.write_text(text, encoding="utf-8")
            script.chmod(0o755)
            yield ["backend.launch=true", f"backend.python={script}"]
            return
        kinds: list[type[FakeServer]] = [FakeSwitchingServer] if env == "dp_tp" else [FakeServer, FakeServer]
        with contextlib.ExitStack() as stack:
            long = Behaviour(max_model_len=16384, num_blocks=1024, token_s=0.0)
            urls = [stack.enter_context(kind(long)).url for kind in kinds]
            yield [f"backend.endpoints=[{','.join(urls)}]"]

    return make


@pytest.mark.parametrize(
    ("env", "launch"),
    [
        *((env, True) for env in ("routing", "dp_tp", "autoscaling", "deployment", "sharing")),
        *((env, False) for env in ("routing", "dp_tp")),
    ],
)
def test_a_setting_is_used_or_refused(
    env: str, launch: bool, server_words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "PolicyProcess", lambda env: contextlib.nullcontext())
    with server_words(env, launch) as words:
        config = composed("evaluate", EvaluateConfig, ["backend=vllm", *words, *WORDS[env]])
        backend, read = spied(config.backend)
        config = dataclasses.replace(config, backend=backend)
        with policies.deciding(config, {}), live_env(config, tmp_path / "servers") as (live, _):
            live.reset(seed=0)
            live.step(None)
        refused = {
            name for name in NAMES - read - CHOOSING if is_refused(config.backend, name, env)
        }  # raises where a setting is neither
    assert refused | read | CHOOSING == NAMES
    assert {"scrape_interval_s", "silence_s", "hung_after_s", "vocab_size", "salt", "access"} <= read


def test_a_stream_uses_or_refuses_them_too(tmp_path: Path) -> None:
    from serving_gym.envs.interface.cluster import ClusterSpec

    with FakeServer() as server:
        backend, read = spied(BackendConfig(name="vllm", endpoints=(server.url,)))
        with live_backend(backend, ClusterSpec(num_gpus=1, order="fcfs"), SLOS, tmp_path) as live:
            live.reset(stream_of(2))
            live.run_to_completion()
        assert all(is_refused(backend, name, "") for name in NAMES - read - CHOOSING)


def test_what_is_refused_is_said() -> None:
    attached = BackendConfig(name="vllm", endpoints=("http://127.0.0.1:1",), device="cuda")
    with pytest.raises(
        ValueError, match=r"backend\.device has no effect with env=routing: it is for servers that"
    ):
        check_used(attached, "routing")
    launched = BackendConfig(name="vllm", launch=True, decide_within_s=1.0)
    with pytest.raises(
        ValueError, match=r"decide_within_s .* policy's time is backend\.control_within_s there"
    ):
        check_used(launched, "autoscaling")
    check_used(dataclasses.replace(launched, decide_within_s=0.005), "autoscaling")
