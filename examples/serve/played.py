"""What the examples of autoscaling share: a deployment that is played, and `runners.serve` as a process beside it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

START_WITHIN_S = 120.0
STOP_WITHIN_S = 20.0
# A policy that decides every second, and a history of one-second bins, so that a short play has many decisions; in this
# process, so that the start takes seconds.
QUICK = (
    "cluster=fleet_autoscaled",
    "workload=sharegpt_poisson",
    "isolate=false",
    "env.decision_interval_s=1",
    "env.history_bin_s=1",
    "env.recent_bin_s=1",
    "env.recent_s=10",
    "scaling.max_replicas=8",
)


@dataclass
class Deployment:
    """Replicas that serve requests from one queue.

    Attributes:
        pods: Requests that each replica has served, by its name.
        coming: Ticks that each replica to come still takes.
        waiting: Requests that wait.
        served_rps: Requests that a replica serves a second.
        prompt_tokens: Tokens of a prompt.
        start_ticks: Ticks that a replica takes to start.
    """

    pods: dict[str, float] = field(default_factory=lambda: {"pod-0": 0.0, "pod-1": 0.0})
    coming: list[int] = field(default_factory=list)
    waiting: float = 0.0
    served_rps: float = 2.0
    prompt_tokens: float = 500.0
    start_ticks: int = 3
    _born: int = 2

    @property
    def wanted(self) -> int:
        """Replicas that there are to be, `spec.replicas`."""
        return len(self.pods) + len(self.coming)

    def scale(self, wanted: int) -> None:
        """Sets how many there are to be, as a controller does by the scale subresource; the youngest go first."""
        self.coming += [self.start_ticks] * (wanted - self.wanted)
        while self.wanted > wanted:
            if self.coming:
                self.coming.pop()
            else:
                self.pods.popitem()

    def tick(self, arrived: float, seconds: float) -> None:
        """Lets time pass, in which requests arrive."""
        self.coming = [left - 1 for left in self.coming]
        for _ in range(sum(left <= 0 for left in self.coming)):
            self.pods[f"pod-{self._born}"] = 0.0
            self._born += 1
        self.coming = [left for left in self.coming if left > 0]
        served = min(self.waiting + arrived, len(self.pods) * self.served_rps * seconds)
        self.waiting += arrived - served
        for name in self.pods:
            self.pods[name] += served / len(self.pods)

    def readings(self, rps: float = math.inf) -> dict[str, object]:
        """What the replicas say of themselves, as `POST /v1/readings` takes it; `rps`: requests that come a second."""
        each = self.waiting / max(len(self.pods), 1)
        running = min(self.served_rps, rps / max(len(self.pods), 1) + each)
        said = {
            name: {
                "num_running": math.ceil(running),
                "num_waiting": round(each),
                "kv_usage_ratio": min(0.2 + each / 50, 1.0),
                "requests_total": ended,
                "input_tokens_total": self.prompt_tokens * ended,
            }
            for name, ended in self.pods.items()
        }
        return {"replicas": said, "num_held": 0 if said else round(self.waiting), "wanted": self.wanted}


@contextlib.contextmanager
def served(policy: str, protocols: Sequence[str], *words: str) -> Iterator[dict[str, str]]:
    """Runs `runners.serve` and yields the address of each protocol.

    Args:
        policy: Name of the policy.
        protocols: What it listens for.
        words: Further overrides.

    Raises:
        RuntimeError: It ends before it listens.
    """
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-m",
            "serving_gym.runners.serve",
            "env=autoscaling",
            f"policy={policy}",
            f"protocols=[{','.join(protocols)}]",
            *(f"ports.{protocol}=0" for protocol in protocols),
            *QUICK,
            *words,
            f"out={out}",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        try:
            yield _addresses(process, protocols)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _addresses(process: subprocess.Popen[str], protocols: Sequence[str]) -> dict[str, str]:
    """Addresses by protocol, from the lines `POLICY answers PROTOCOL at ADDRESS`."""
    found: dict[str, str] = {}
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[1:2] == ["answers"]:
            found[words[2]] = words[4]
        if len(found) == len(protocols):
            return found
    raise RuntimeError(f"runners.serve ended with status {process.wait()} before it listened")


def asked(url: str, body: object = None) -> tuple[int, bytes]:
    """Status and body of an answer over HTTP.

    Args:
        url: Address.
        body: Object to post as JSON; None: GET.
    """
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=5) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def load(tick: int) -> float:
    """Requests a second: few, many, few."""
    return 12.0 if 8 <= tick < 20 else 2.0


def header(*columns: str) -> None:
    """Prints the head of a table."""
    print("  ".join(f"{column:>9}" for column in columns))


def row(*values: object) -> None:
    """Prints a row of a table."""
    print(
        "  ".join(
            f"{value if isinstance(value, (str, int)) else round(float(value), 1):>9}" for value in values
        )
    )  # type: ignore[arg-type]
