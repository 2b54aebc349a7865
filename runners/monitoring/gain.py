"""What a served policy gains over its fallback rule, estimated from its decision log while it serves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from serving_gym.runners.replaying.analysis import ANSWERED, FALLBACK, Analysis
from serving_gym.runners.replaying.estimate import Settings
from serving_gym.runners.replaying.log import log_file
from serving_gym.runners.replaying.setting import Run, run_of

_MOST_COST = 20.0  # of a request, TTFT / SLO + TPOT / SLO


class GainWatch:
    """Estimates anew every so often, in a thread, from the newest decisions of a log.

    Args:
        log: The decision log of `runners.serve`, or its run directory.
        decisions: Newest decisions to take.
        every_s: Time between two estimates, s.

    Attributes:
        sentences: What to show.
        found: The last estimate, for `summary.json`; empty: none yet.
        is_ready: Whether it has tried to estimate.

    Raises:
        ValueError: There is no log, or its folder does not tell its environment.
    """

    def __init__(self, log: Path, decisions: int, every_s: float) -> None:
        self.file, self.decisions, self.every_s = log_file(log), decisions, every_s
        self.sentences: tuple[str, ...] = ("Gain over the fallback rule: not estimated yet.",)
        self.found: dict[str, Any] = {}
        self.is_ready = False
        self._run: Run = run_of(self.file)
        if self._run.environment is None:
            raise ValueError(
                f"log={log}: its folder has no configuration of runners.serve, so it cannot be read"
            )
        self._env: Any = self._run.environment.make().unwrapped

    async def follow(self) -> None:
        """Estimates again and again, until it is cancelled."""
        while True:
            begun_s = time.monotonic()
            try:
                self.found = await asyncio.to_thread(self.estimate)
                self.sentences = tuple(said_of(self.found))
            except Exception as error:  # noqa: BLE001 -- whatever a log holds, the servers are watched on
                self.sentences = (f"Gain over the fallback rule: the log cannot be read: {error}",)
            self.is_ready = True
            await asyncio.sleep(max(self.every_s - (time.monotonic() - begun_s), 1.0))

    def estimate(self) -> dict[str, Any]:
        """Reads the log and estimates.

        Raises:
            ValueError: It cannot be read.
        """
        environment = self._run.environment
        assert environment is not None, "checked when it was made"
        analysis = Analysis.of(
            self.file, self._run, environment, self._env, {}, _MOST_COST, self.decisions, newest=True
        )
        return analysis.header() | analysis.estimates(Settings())


def said_of(found: dict[str, Any]) -> list[str]:
    """An estimate in one or two sentences.

    Args:
        found: As `GainWatch.estimate` returns it.
    """
    newest = f"the newest {found['decisions']:,} decisions"
    policies = found["policies"]
    if ANSWERED not in policies or FALLBACK not in policies:
        return [f"Gain over the fallback rule: {newest} have none to compare with."]
    entry = policies[ANSWERED]
    if "over" not in entry:
        return [f"Gain over the fallback rule: {found['note']}"]
    low, high = entry["over"]["ci95"]
    said = (
        f"Gain over the fallback rule (doubly robust, {newest}, cost of a request TTFT / SLO + TPOT / SLO): "
        f"{100 * entry['over']['mean']:+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}]; the log has "
        f"{found['random_decisions']:,} random decisions, {entry['agreement']:.0%} are the policy's and "
        f"{policies[FALLBACK]['agreement']:.0%} the rule's."
    )
    return [said, *([note] if (note := policies[FALLBACK]["note"] or entry["note"]) else [])]
