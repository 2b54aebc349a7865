"""The launcher with a stand-in for vLLM: a script that takes the same command line, and starts a child as vLLM does."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from serving_gym.envs.live.launch_settings import PYTHON_VARIABLE, LaunchSettings, environment, shares_gpu
from serving_gym.envs.live.launcher import LocalServer, answers, ending_on_signals
from serving_gym.envs.live.supervision import LocalServers
from tests.processes import is_running

STAND_IN = """\
    #!{python}
    import http.server, subprocess, sys
    {before}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *words):
            pass
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
    """


def stand_in(folder: Path, before: str = "") -> LaunchSettings:
    script = folder / "python"
    script.write_text(
        textwrap.dedent(STAND_IN).format(python=sys.executable, before=before), encoding="utf-8"
    )
    script.chmod(0o755)
    return LaunchSettings(python=str(script), start_within_s=20.0, stop_within_s=2.0)


def child_of(server: LocalServer) -> int:
    return int(server.log.read_text().split("child ")[1].split()[0])


def test_a_server_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    with LocalServer(stand_in(tmp_path), tmp_path / "run") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert urllib.request.urlopen(server.url + "/health").status == 200
        pid, child = server.pid, child_of(server)
        assert pid is not None
        assert is_running(child)
    assert not is_running(pid)
    assert not is_running(child)


def test_a_server_that_will_not_go_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with LocalServer(stand_in(tmp_path, stubborn), tmp_path / "run") as server:
        pid = server.pid
    assert pid is not None
    assert not is_running(pid)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_behind_by_an_error(error: type[BaseException], tmp_path: Path) -> None:
    pids: list[int] = []

    def work() -> None:
        with LocalServer(stand_in(tmp_path), tmp_path / "run") as server:
            pids.extend([server.pid or 0, child_of(server)])
            raise error

    with pytest.raises(error):
        work()
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = stand_in(tmp_path)
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from serving_gym.envs.live.launch_settings import LaunchSettings
        from serving_gym.envs.live.launcher import LocalServer, ending_on_signals
        settings = LaunchSettings(python={settings.python!r}, stop_within_s=2.0)
        with ending_on_signals(), LocalServer(settings, Path({str(tmp_path / "run")!r})) as server:
            print(server.pid, flush=True)
            time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path.cwd())
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.terminate()
    assert process.wait(30) == 128 + 15
    process.stdout.close()
    assert not is_running(pid)


def test_a_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    settings = stand_in(tmp_path, "sys.exit('out of memory, sorry')")
    with pytest.raises(ValueError, match="ended before it answered: out of memory, sorry"):
        LocalServer(settings, tmp_path / "run").__enter__()


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    settings = replace(stand_in(tmp_path, "import time; time.sleep(60)"), start_within_s=0.5)
    begun_s = time.monotonic()
    with pytest.raises(ValueError, match=r"did not answer within 0\.5 s: it said nothing"):
        LocalServer(settings, tmp_path / "run").__enter__()
    assert time.monotonic() - begun_s < 10


def test_an_interpreter_must_be_named_and_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=f"{PYTHON_VARIABLE}"):
        LaunchSettings().interpreter()
    monkeypatch.setenv(PYTHON_VARIABLE, "/nowhere/python")
    with pytest.raises(ValueError, match="'/nowhere/python' does not exist"):
        LaunchSettings().interpreter()


def test_own_folder_goes_with_the_server(tmp_path: Path) -> None:
    with ending_on_signals(), LocalServer(stand_in(tmp_path)) as server:
        folder = server.folder
        assert (folder / "model" / "config.json").is_file()
    assert not folder.exists()


def test_a_server_that_dies_is_started_again_at_its_address(tmp_path: Path) -> None:
    with LocalServers([stand_in(tmp_path)] * 2, tmp_path / "run", back_off_s=0.2) as fleet:
        first, urls = fleet.servers[1].pid, fleet.urls
        assert first is not None
        for round_ in range(2):
            dead = fleet.servers[1].pid
            assert dead is not None
            os.killpg(dead, signal.SIGKILL)
            wait_for(lambda count=round_ + 1: len(fleet.restarts) == count)
            wait_for(lambda: answers(urls[1]))
        assert fleet.urls == urls
        assert [restart.server for restart in fleet.restarts] == [1, 1]
        assert fleet.restarts[0].waited_s >= 0.2
        assert fleet.restarts[1].waited_s >= 0.4  # it waits longer each time
        pids = [server.pid for server in fleet.servers]
    assert not any(is_running(pid) for pid in pids if pid is not None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no process on cores")
def test_a_server_and_its_children_stay_on_their_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with LocalServer(replace(stand_in(tmp_path), slot=str(core)), tmp_path / "run") as server:
        assert server.pid is not None
        assert os.sched_getaffinity(server.pid) == os.sched_getaffinity(child_of(server)) == {core}


@pytest.mark.parametrize(
    ("slot", "cores"),
    [("0", {0}), ("0-2", {0, 1, 2}), ("0,2", {0, 2}), ("0|1", {0, 1}), ("0-1|4", {0, 1, 4})],
)
def test_cores_of_a_slot(slot: str, cores: set[int]) -> None:
    assert LaunchSettings(slot=slot).cores == cores
    assert LaunchSettings(device="cuda", slot=slot).cores == set()


@pytest.mark.parametrize("slot", ["", "a", "0-", "0;1", "-1"])
def test_a_slot_that_is_none(slot: str) -> None:
    with pytest.raises(ValueError, match="cores are written 0, 0-3, 0,2 or"):
        LaunchSettings(slot=slot)


def test_what_a_server_is_started_with() -> None:
    cpu, gpu = (
        LaunchSettings(python=sys.executable, slot="1"),
        LaunchSettings(
            python=sys.executable,
            device="cuda",
            slot="0,1",
            tp_size=2,
            memory_utilization=0.4,
            sleep_mode=True,
        ),
    )
    words = cpu.arguments("model", 8000)
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(512 * 32 * 4096)
    assert environment(cpu)["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    words = gpu.arguments("model", 8000)
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.4"
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "--enable-sleep-mode" in words
    assert environment(gpu)["CUDA_VISIBLE_DEVICES"] == "0,1"
    with pytest.raises(ValueError, match=r"sleep_mode needs backend\.device=cuda"):
        LaunchSettings(sleep_mode=True)
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, got 'tpu'"):
        LaunchSettings(device="tpu")


def test_servers_on_one_gpu_start_in_turn(tmp_path: Path) -> None:
    gpu = [replace(stand_in(tmp_path), device="cuda", slot=slot) for slot in ("0", "0,1", "1", "2")]
    cpu = [stand_in(tmp_path)] * 2
    assert shares_gpu(gpu[0], gpu[1])
    assert shares_gpu(gpu[1], gpu[2])
    assert not shares_gpu(gpu[0], gpu[2])
    assert not shares_gpu(*cpu)
    waited: list[str] = []

    class Watched(LocalServer):
        def start(self) -> None:
            waited.append(f"start {self.settings.slot}")
            super().start()

        def wait_until_ready(self) -> None:
            super().wait_until_ready()
            waited.append(f"ready {self.settings.slot}")

    fleet = LocalServers(gpu[:1] + gpu[1:2] + gpu[3:], tmp_path / "run")
    fleet.servers = [Watched(server.settings, server.folder) for server in fleet.servers]
    with fleet:
        pass
    assert waited[:4] == ["start 0", "ready 0", "start 0,1", "start 2"]


def wait_for(condition, limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
