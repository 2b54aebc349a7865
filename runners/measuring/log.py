"""Reads vLLM's per-iteration log (`--enable-logging-iteration-details`).

A line says how many requests and tokens an iteration held, how long the engine waited for the model, and when it was
written. With asynchronous scheduling the wait is only a part of the iteration, so its length is taken from the distance
of two lines; that needs stamps finer than the second at which vLLM's own format stops (`envs/live/vllm_logging.json`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(
    r"^(?:\(EngineCore[^)]*\) )?(?P<stamp>\S+) [A-Z]+ (?:.*Engine (?P<engine>\d+): )?Iteration\((?P<index>\d+)\): "
    r"(?P<ctx_requests>\d+) context requests, (?P<ctx_tokens>\d+) context tokens, "
    r"(?P<gen_requests>\d+) generation requests, (?P<gen_tokens>\d+) generation tokens, "
    r"iteration elapsed time: (?P<elapsed_ms>[\d.]+) ms(?P<dummy> \(dummy\))?"
)
_MARK = "Iteration("
_ASYNC = re.compile(r"Asynchronous scheduling is (enabled|disabled)")


@dataclass(frozen=True, slots=True)
class Iteration:
    """One line of the log.

    Attributes:
        index: Number since the engine started.
        stamp_s: When its end was logged, seconds since the epoch.
        prompts: Requests that were being prefilled.
        prompt_tokens: Their tokens in this iteration.
        decoding: Requests that were being decoded.
        elapsed_s: Time the engine waited for the model, seconds.
        again: Tokens of those beyond one each: speculative ones, or computed anew after a preemption.
    """

    index: int
    stamp_s: float
    prompts: int
    prompt_tokens: int
    decoding: int
    elapsed_s: float
    again: int = 0


class IterationLog:
    """A growing log file.

    Args:
        path: the file that the server's standard output goes to.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb"):
            pass
        self._offset = 0

    def schedules_async(self) -> bool | None:
        """Whether the server that the log ends with schedules asynchronously; None: it does not say (vLLM 0.32)."""
        said = _ASYNC.findall(self.path.read_text(encoding="utf-8", errors="replace"))
        return said[-1] == "enabled" if said else None

    def new_iterations(self) -> list[Iteration]:
        """Iterations logged since the last call.

        Raises:
            ValueError: lines without fine stamps, or of more than one engine.
        """
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode("utf-8", errors="replace").splitlines()
        parsed = [parse_line(line) for line in lines if _MARK in line]
        return [iteration for iteration in parsed if iteration is not None]


def check_log(iterations: Sequence[Iteration], path: Path) -> None:
    """Refuses the log of a server that cannot be measured, by what it said of a load that everybody can serve.

    Raises:
        ValueError: it said nothing, or the server decodes speculatively.
    """
    if not iterations:
        raise ValueError(
            f"{path} says nothing of iterations: start the server with --enable-logging-iteration-details and its "
            "standard output in that file"
        )
    if any(iteration.again for iteration in iterations):
        raise ValueError(
            f"{path} holds speculative tokens, which the latency model does not know: measure a server without "
            "speculative decoding"
        )


def parse_line(line: str) -> Iteration | None:
    """One line of the log; None for an iteration without work (data parallelism's dummies).

    Raises:
        ValueError: the line is not as vLLM 0.24 to 0.32 write it, its stamp is too coarse, or it is not the first
            engine's.
    """
    match = _LINE.match(line)
    if match is None:
        raise ValueError(f"cannot read the iteration log: {line.strip()[:160]!r}")
    if match["dummy"]:
        return None
    if int(match["engine"] or 0) != 0:
        raise ValueError(
            "the iteration log holds several engines; measure a server with one (no data parallelism)"
        )
    return Iteration(
        index=int(match["index"]),
        stamp_s=_stamp(match["stamp"], line),
        prompts=int(match["ctx_requests"]),
        prompt_tokens=int(match["ctx_tokens"]),
        decoding=int(match["gen_requests"]),
        elapsed_s=float(match["elapsed_ms"]) / 1e3,
        again=int(match["gen_tokens"]) - int(match["gen_requests"]),
    )


def _stamp(text: str, line: str) -> float:
    try:
        stamp = float(text) if "." in text else float("nan")
    except ValueError:
        stamp = float("nan")
    if stamp != stamp:
        raise ValueError(
            f"lines of the iteration log must begin with seconds since the epoch, as in 1790000000.123456, but one "
            f"begins {line[:40]!r}; start the server with VLLM_LOGGING_CONFIG_PATH naming "
            "envs/live/vllm_logging.json"
        )
    return stamp
