"""Plays kube-controller-manager's HorizontalPodAutoscaler against the external metrics API, without a cluster.

    python examples/serve/kubernetes/run.py

It asks the API as the controller does, by discovery and then the value, and applies the controller's formula for an
external metric with `AverageValue: 1` (`GetExternalPerPodMetricReplicas`) to it. The number of replicas that it sets
must be the one that the policy wants.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from played import Deployment, asked, header, load, row, served

TICK_S = 0.25
TICKS = 32
QUICK = ("policy.params.sync_s=0.5", "policy.params.in_stabilization_s=1.5")
API = "/apis/external.metrics.k8s.io/v1beta1"
TARGET_MILLI = 1000  # averageValue: "1"


def replicas_by_hpa(present: int, milli: int, tolerance: float) -> int:
    """Replicas that the controller wants.

    Args:
        present: `status.replicas` of the target.
        milli: Sum of the metric's values, in thousandths.
        tolerance: Of the ratio; `spec.behavior.*.tolerance`.
    """
    ratio = milli / (TARGET_MILLI * present)
    return present if abs(1.0 - ratio) <= tolerance else math.ceil(milli / TARGET_MILLI)


def milli_of(quantity: str) -> int:
    """A Quantity of Kubernetes, in thousandths."""
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def main(policy: str = "hpa_waiting", *words: str) -> int:
    """Plays; returns the number of rounds in which the controller would set another number than the policy wants."""
    deployment, wrong, quick = Deployment(), 0, QUICK if policy == "hpa_waiting" else ()
    with served(policy, ["external_metrics"], "scaling.target=default/llama", *quick, *words) as addresses:
        url = addresses["external_metrics"]
        resources = json.loads(asked(url + API)[1])["resources"]
        (metric,) = [each["name"] for each in resources if each["kind"] == "ExternalMetricValueList"]
        header("second", "rps", "waiting", "ready", "metric", "HPA sets")
        for tick in range(TICKS):
            deployment.tick(load(tick) * TICK_S, TICK_S)
            said = json.loads(asked(f"{url}/v1/readings", deployment.readings())[1])
            status, body = asked(f"{url}{API}/namespaces/default/{metric}?labelSelector=target%3Dllama")
            value, wanted = "-", deployment.wanted
            if status == 200:  # otherwise there is no decision yet, and the controller leaves all as it is
                (item,) = json.loads(body)["items"]
                value = item["value"]
                wanted = replicas_by_hpa(deployment.wanted, milli_of(value), tolerance=0.0)
                wrong += wanted != said["desired_replicas"]
            row(tick * TICK_S, load(tick), deployment.waiting, len(deployment.pods), value, wanted)
            deployment.scale(wanted)
            time.sleep(TICK_S)
    print(f"{wrong} of {TICKS} rounds in which the controller sets another number than the policy wants")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
