"""Help, lists of commands, broken files, brackets in tables, progress in a pipe, and the line about compiling."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from serving_gym.envs.simulator.compiling import CompilationNotice
from serving_gym.runners import __main__ as runners_main
from serving_gym.runners import compare, evaluate, serve, simulate, train, tune
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.reporting import progress
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table


@pytest.mark.parametrize("module", [compare, evaluate, serve, simulate, train, tune])
def test_help_fits_a_screen_and_leads_with_the_purpose(
    module: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main(["--help"]) == 0  # type: ignore[attr-defined]
    said = capsys.readouterr().out
    assert said.startswith(module.__doc__.splitlines()[0])  # type: ignore[union-attr]
    assert "python -m runners." in said
    assert "workload=" in said
    assert "--cfg job" in said
    assert len(said.splitlines()) < 70
    assert module.main(["-h", "seeds=nonsense"]) == 0  # type: ignore[attr-defined]


def test_the_commands_are_listed_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert runners_main.main([]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in ("train", "compare", "traces", "serve"))
    assert "Compares policies on identical arrivals." in said
    assert runners_main.main(["comapre"]) == USER_ERROR
    assert "did you mean 'compare'?" in capsys.readouterr().err
    assert runners_main.main(["compare", "seeds=0"]) == USER_ERROR
    assert "seeds must be at least 1, got 0" in capsys.readouterr().err


def test_a_broken_file_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own" / "workload" / "broken.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: azure_conv_fitted\nrate_scale: [1.0\nnum_requests: 3\n")
    words = [f"--config-dir={tmp_path / 'own'}", "workload=broken", f"out={tmp_path / 'out'}"]
    assert compare.main(words) == USER_ERROR
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"error: cannot read '{file}', line 3")
    assert len(said.splitlines()) == 1


def test_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("runs/[red]ten", ["policy", "return [s]"], [["runs/seed=[a,b]", (1.0, 0.5, 1.5)]])
    print_results_in(Path("runs/policies=[jsq,sia]"))
    said = capsys.readouterr().out
    for text in ("runs/[red]ten", "return [s]", "runs/seed=[a,b]", "1 [0.5, 1.5]", "policies=[jsq,sia]"):
        assert text in said


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.05)
    with progress_bar(4, "compare", "episode") as bar:
        for _ in range(4):
            time.sleep(0.03)
            bar.update()
    lines = pipe.getvalue().splitlines()
    assert 1 < len(lines) <= 4
    assert lines[-1].startswith("compare: 100 % | 4 of 4 episode")
    assert "\r" not in pipe.getvalue()
    pipe.truncate(0)
    with progress_bar(4, "short", "episode") as bar:
        bar.update(4)
    assert not pipe.getvalue().strip("\0")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(4, "compare") as bar:
        bar.update(4)
    assert "\r" in terminal.getvalue()


class _Cache:
    """Numba's cache of one function, as far as the notice looks at it."""

    def __init__(self, held: object) -> None:
        self.held = held

    def load_overload(self, signature: object, context: object) -> object:
        return self.held

    def save_overload(self, signature: object, data: object) -> None:
        self.held = data


def test_only_a_cold_cache_is_announced_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    notice, warm, cold = (
        CompilationNotice(patience_s=0.01),
        _Cache("code"),
        [_Cache(None), _Cache(None), _Cache(None)],
    )
    for cache in (warm, *cold):
        notice.watch(cache)
    assert warm.load_overload("f", None) == "code"
    cold[0].load_overload("f", None)
    cold[0].save_overload("f", "code")  # at once: not worth a line
    time.sleep(0.05)
    assert capsys.readouterr().err == ""
    for cache in cold[1:]:
        cache.load_overload("f", None)
        time.sleep(0.05)
        cache.save_overload("f", "code")
    said = capsys.readouterr().err
    assert said.count("compiling the kernel, about 60 s, once") == 1
    assert cold[1].held == "code"
