"""Plays AIBrix' PodAutoscaler (strategy KPA) against the external metric source, without a cluster.

    python examples/serve/aibrix/run.py

It asks what AIBrix asks, `GET http://ENDPOINT/PATH` with the path of the GPU optimizer, takes the first sample of
`targetMetric` from the page, and applies KPA's formula with `targetValue: "1"` and a window of one sample.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parent.parent))
from played import Deployment, asked, header, load, row, served

TICK_S = 0.25
TICKS = 40
PATH = "/metrics/default/llama"
METRIC = "vllm:deployment_replicas"
RATE = 10.0  # autoscaling.aibrix.ai/max-scale-up-rate and -down-rate


def sample_of(page: str) -> float:
    """The first sample of the metric on a page."""
    for family in text_string_to_metric_families(page):
        if family.name == METRIC:
            return float(family.samples[0].value)
    raise ValueError(f"the page has no {METRIC}: {page!r}")


def replicas_by_kpa(ready: int, value: float, target: float = 1.0) -> int:
    """What KPA sets in its stable mode (`pkg/controller/podautoscaler/algorithm/kpa.go`)."""
    most, least = max(1, math.ceil(RATE * ready)), math.floor(ready / RATE)
    return min(max(math.ceil(value / target), least), most)


def main(policy: str = "zoo/autoscaling") -> int:
    """Plays; returns the number of rounds in which AIBrix would set another number than the policy wants."""
    deployment, wrong = Deployment(prompt_tokens=6000.0), 0
    protocols = ["external_metrics", "aibrix"]
    with served(policy, protocols, "scaling.target=default/llama") as at:
        header("second", "rps", "waiting", "ready", "metric", "KPA sets")
        for tick in range(TICKS):
            deployment.tick(load(tick) * TICK_S, TICK_S)
            asked(f"{at['external_metrics']}/v1/readings", deployment.readings())
            status, body = asked(at["aibrix"] + PATH)
            value, wanted = "-", deployment.wanted
            if status == 200:  # otherwise there is no decision yet, and AIBrix leaves all as it is
                value = str(sample_of(body.decode()))
                wanted = replicas_by_kpa(len(deployment.pods), float(value))
                wrong += wanted != float(value)
            row(tick * TICK_S, load(tick), deployment.waiting, len(deployment.pods), value, wanted)
            deployment.scale(wanted)
            time.sleep(TICK_S)
        unknown, _ = asked(at["aibrix"] + "/metrics/default/other")
    print(f"{wrong} of {TICKS} rounds in which AIBrix sets another number than the policy wants")
    return wrong + (unknown != 404)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
