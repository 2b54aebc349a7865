"""However the runner ends, no server stays; one that hangs is killed; its log is bounded. With real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from serving_gym.envs.live import guardian
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.launcher import LocalServer, answers
from serving_gym.envs.live.supervision import LocalServers
from tests.live.test_launcher import child_of, stand_in, wait_for
from tests.processes import is_running

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
RUNNER = """\
    import time
    from dataclasses import replace
    from pathlib import Path
    from serving_gym.envs.live.launch_settings import LaunchSettings
    from serving_gym.envs.live.launcher import ending_on_signals
    from serving_gym.envs.live.supervision import LocalServers
    settings = [LaunchSettings(python={python!r}, stop_within_s=60.0)] * 2
    with ending_on_signals(), LocalServers(settings, Path({folder!r})) as fleet:
        print(*(server.pid for server in fleet.servers), flush=True)
        time.sleep(600)
    """


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process that has launched two servers which ignore SIGTERM, and all processes of these."""
    settings = stand_in(tmp_path, STUBBORN)
    code = textwrap.dedent(RUNNER).format(python=settings.python, folder=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    logs = (tmp_path / "run").glob("*/vllm.log")
    pids += [int(log.read_text().split("child ")[1].split()[0]) for log in logs]
    yield process, pids
    process.stdout.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGKILL,),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGINT),
    ],
    ids=lambda signals: "+".join(each.name for each in signals),
)
def test_no_server_outlives_its_runner(
    runner: tuple[subprocess.Popen[bytes], list[int]], signals: tuple[signal.Signals, ...]
) -> None:
    process, pids = runner
    assert len(pids) == 4
    assert all(map(is_running, pids))
    for each in signals:
        process.send_signal(each)
        time.sleep(0.2)
    assert process.wait(20) != 0
    wait_for(lambda: not any(map(is_running, pids)))


def test_sighup_alone_ends_a_run_in_good_order(tmp_path: Path) -> None:
    settings = stand_in(tmp_path)
    code = textwrap.dedent(RUNNER).format(python=settings.python, folder=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 128 + signal.SIGHUP
    process.stdout.close()
    assert not any(map(is_running, pids))


def test_a_killed_guardian_takes_its_server_along(tmp_path: Path) -> None:
    with LocalServer(stand_in(tmp_path), tmp_path / "run") as server:
        pid, child = server.pid, child_of(server)
        assert pid is not None
        assert server._guardian is not None
        server._guardian.kill()
        wait_for(lambda: not is_running(pid))
        assert server.pid is None
    wait_for(lambda: not is_running(child))


def test_a_server_that_hangs_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(stand_in(tmp_path), hung_after_s=1.0)
    with LocalServers([settings], tmp_path / "run", back_off_s=0.1) as fleet:
        pid = fleet.servers[0].pid
        assert pid is not None
        time.sleep(1.0)  # until its guardian has had an answer
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: fleet.servers[0].pid not in (None, pid), 40.0)
        wait_for(lambda: answers(fleet.urls[0]))
        assert not is_running(pid)
    assert "did not answer /health for 1 s and was killed" in caplog.text
    assert "no answer to /health for 1 s: killed" in (tmp_path / "run" / "0" / "vllm.log").read_text()


def test_one_that_is_taken_to_hang_is_killed_at_once(tmp_path: Path) -> None:
    with LocalServer(stand_in(tmp_path), tmp_path / "run") as server:
        child = child_of(server)
        server.kill("no token for 9 s")
        wait_for(lambda: server.pid is None)
        assert server.ending == "no token for 9 s"
        assert not is_running(child)
        server.start()
        server.wait_until_ready()
        assert server.ending == "it ended by itself"  # were it to end now


def test_a_paused_server_is_stopped_as_any_other(tmp_path: Path) -> None:
    with LocalServer(replace(stand_in(tmp_path), stop_within_s=30.0), tmp_path / "run") as server:
        pid = server.pid
        assert pid is not None
        os.killpg(pid, signal.SIGSTOP)
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 15
    assert not is_running(pid)


def test_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import time\nwhile True: print('x' * 999, flush=True); time.sleep(0.001)"
    options = guardian.Options(log=str(log), log_bytes=50_000)
    command = [sys.executable, guardian.__file__, json.dumps(options._asdict()), sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_for(lambda: (tmp_path / "log.1").exists())
        written = (tmp_path / "log.1").stat().st_size
        assert written > 50_000
        wait_for(lambda: log.stat().st_size < written)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 128 + signal.SIGTERM


def test_a_command_that_is_none(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("")
    with pytest.raises(ValueError, match=r"cannot start '.*python': .*Permission denied"):
        LocalServer(replace(LaunchSettings(), python=str(broken)), tmp_path / "run").start()
