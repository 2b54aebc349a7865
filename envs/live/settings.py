"""Settings of the live backend."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.envs.live.access import Access
from serving_gym.envs.live.endpoints import check_no_credentials


@dataclass(frozen=True)
class LiveSettings:
    """Settings of the live backend.

    Attributes:
        endpoints: Running servers, `http://HOST:PORT`; commands also take `k8s://NAMESPACE/SERVICE:PORT`.
        model: Name of the served model; None: the only one.
        speed: Factor on the arrival rate; recorded times are real seconds.
        scrape_interval_s: Time between two readings of `/metrics`, seconds.
        stale_after_s: Age from which a reading is marked stale, seconds.
        decide_within_s: Longest time from the arrival of a request to the policy's decision about it, seconds; then it
            is sent by power of two choices. None: no limit.
        silence_s: Longest time without a token from a server, or without any server, before a request fails, seconds.
        hung_after_s: Longest time without any answer before a server is hung, seconds: it gets nothing until it answers
            again, and its requests without a token go elsewhere. One that answers, but has requests and makes no
            progress, has three times as long, which must be more than its longest iteration.
        vocab_size: Upper bound of the prompts' token ids.
        salt: Changes the prompts' tokens, so that prefix caches of an earlier run do not hit.
        allow_remote: Whether servers may be on other machines.
        max_model_len: Longest request, prompt and answer, tokens; None: that of the servers. Of launched servers it is
            their `--max-model-len`, with None the limit of the tiny Llama; of others a lower limit than their own.
        access: API key, headers and TLS of all endpoints.
        access_of: The same of each endpoint by itself, in their order; empty: `access` is that of all.
    """

    endpoints: tuple[str, ...] = ()
    model: str | None = None
    speed: float = 1.0
    scrape_interval_s: float = 0.25
    stale_after_s: float = 2.0
    silence_s: float = 60.0
    hung_after_s: float = 10.0
    decide_within_s: float | None = 0.005
    vocab_size: int = 4096
    salt: int = 0
    allow_remote: bool = False
    max_model_len: int | None = None
    access: Access = field(default_factory=Access)
    access_of: tuple[Access, ...] = ()

    def __post_init__(self) -> None:
        check_positive(
            self,
            "speed",
            "scrape_interval_s",
            "stale_after_s",
            "silence_s",
            "hung_after_s",
            "decide_within_s",
            prefix="backend.",
        )
        check_at_least(self, 1, "max_model_len", prefix="backend.")
        for url in self.endpoints:
            check_no_credentials(url)
        if self.stale_after_s < self.scrape_interval_s:
            raise ValueError(
                f"backend.stale_after_s ({self.stale_after_s}) must be at least "
                f"backend.scrape_interval_s ({self.scrape_interval_s})"
            )


def lower_limit(*limits: int | None) -> int | None:
    """The lowest of those that are given; None where none is."""
    return min((limit for limit in limits if limit is not None), default=None)
