"""Settings of the served autoscaling policies: whose replicas they scale, and what is known of these."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.fields import check_at_least, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

PARTS = ("gauges",)
KINDS = ("deployments", "statefulsets", "replicasets")
COMPONENTS = ("decode", "prefill")
STAGES = ("predict", "propose", "reconcile", "constrain")


@dataclass(frozen=True)
class ScalingSettings:
    """Settings of the served autoscaling policies, `scaling.*` of `runners.serve`.

    Attributes:
        replicas: Addresses of the replicas, whose `/metrics` are read: `http://NAME:PORT`, all addresses of the name,
            or `k8s://NAMESPACE/SERVICE:PORT` (`envs.live.discovery`). Empty: `backend.endpoints`; where these are
            empty too, readings come to the listeners.
        scrape_interval_s: Time between two readings, seconds.
        stale_after_s: Age from which a reading is stale, seconds.
        most_stale_ratio: Share of replicas with a stale reading above which the last decision stands.
        target: What is scaled, `NAMESPACE/NAME` or `NAMESPACE/KIND/NAME`: requests about anything else are not
            answered. Empty: requests are answered whatever they ask about.
        read_scale: Whether the number of replicas that the target is to have is read from the API server of the
            cluster. Otherwise it is taken to be what was last asked for.
        start_within_s: Time after which replicas that were asked for and have not come are not waited for, seconds.
        min_replicas: Fewest replicas; None: `env.min_instances`.
        max_replicas: Most replicas; None: the places of the cluster.
        without: What sources do not report and the policy does not read: "gauges" of replicas. Without them there is
            otherwise no decision.
        metric: Name of the metric.
        history: File that the known traffic is read from at the start and written to; None: it begins with the process.
        tls_certificate: Certificate file of the external metrics API.
        tls_key: Its key file.
        tls_client_ca: Authority of the certificates that its clients must show; None: they need none.
        component: Component of Dynamo's planner that is scaled.
        stages: Stages that it registers for itself, where `registry` is given.
        registry: Registry of Dynamo's planner, `HOST:PORT` or `unix:PATH`; the environment variable
            SERVING_GYM_DYNAMO_TOKEN has the token for it. None: the planner's configuration names the plug-in.
        endpoint: Address by which the planner reaches it then, `grpc://HOST:PORT`; None: the one that it listens on.
    """

    replicas: tuple[str, ...] = ()
    scrape_interval_s: float = 5.0
    stale_after_s: float = 30.0
    most_stale_ratio: float = 0.5
    target: str = ""
    read_scale: bool = False
    start_within_s: float = 1200.0
    min_replicas: int | None = None
    max_replicas: int | None = None
    without: tuple[str, ...] = ()
    metric: str = "desired_replicas"
    history: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    component: str = "decode"
    stages: tuple[str, ...] = ("propose",)
    registry: str | None = None
    endpoint: str | None = None

    def __post_init__(self) -> None:
        times = ("scrape_interval_s", "stale_after_s", "start_within_s")
        check_positive(self, *times, prefix="scaling.", finite=True)
        check_within(self, "[0, 1]", "most_stale_ratio", prefix="scaling.")
        check_at_least(self, 0, "min_replicas", prefix="scaling.")
        check_at_least(self, 1, "max_replicas", prefix="scaling.")
        if None not in (self.min_replicas, self.max_replicas) and self.min_replicas > self.max_replicas:  # type: ignore[operator]
            raise ValueError(
                f"scaling.min_replicas ({self.min_replicas}) must be at most scaling.max_replicas ({self.max_replicas})"
            )
        for part in self.without:
            check_choice("scaling.without", part, PARTS)
        check_choice("scaling.component", self.component, COMPONENTS)
        for stage in self.stages:
            check_choice("scaling.stages", stage, STAGES)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("scaling.tls_certificate and scaling.tls_key must be given together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("scaling.tls_client_ca needs scaling.tls_certificate and scaling.tls_key")
        _ = self.target_parts
        if self.read_scale and not self.target:
            raise ValueError("scaling.read_scale needs scaling.target=NAMESPACE/NAME")

    @property
    def target_parts(self) -> tuple[str, str, str]:
        """Namespace, kind and name of the target; empty where there is none."""
        if not self.target:
            return "", "", ""
        namespace, *kind, name = self.target.split("/") if "/" in self.target else ("", "")
        if not namespace or not name or len(kind) > 1:
            raise ValueError(
                f"scaling.target must be NAMESPACE/NAME or NAMESPACE/KIND/NAME, got {self.target!r}"
            )
        check_choice("kind of scaling.target", kind[0] if kind else KINDS[0], KINDS)
        return namespace, kind[0] if kind else KINDS[0], name
