"""A token bucket: so many prompt tokens a second are let in, with room for a burst."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.admission.admitter import REJECT, Admitter
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class TokenBucketConfig(Constants):
    """Constants of `TokenBucketPolicy`; defaults of inference-sim (BLIS), `--token-bucket-*`.

    Attributes:
        capacity_tokens: Prompt tokens that the bucket holds.
        refill_tokens_per_s: Prompt tokens a second that flow into it.
    """

    capacity_tokens: float = tunable(10_000.0, 1_000.0, 1_000_000.0, log=True)
    refill_tokens_per_s: float = tunable(1_000.0, 1_000.0, 1_000_000.0, log=True)

    def __post_init__(self) -> None:
        check_positive(self, "capacity_tokens", "refill_tokens_per_s", finite=True)


class TokenBucketPolicy(Admitter, Configured[TokenBucketConfig]):
    """A request costs its prompt tokens; it is refused where the bucket holds fewer.

    inference-sim (BLIS), `sim/admission.go`, `token-bucket`: the bucket begins full and is refilled in proportion to
    the time that has passed, up to its capacity. It knows no priorities.
    """

    name = "token_bucket"

    def begin(self) -> None:
        """The bucket is full."""
        self._tokens, self._at_s = self.config.capacity_tokens, 0.0

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Refuses what costs more than there is."""
        config = self.config
        refill = config.refill_tokens_per_s * (state.now_s - self._at_s)
        self._tokens = min(self._tokens + refill, config.capacity_tokens)
        self._at_s = state.now_s
        if self._tokens < request.input_tokens:
            return REJECT
        self._tokens -= request.input_tokens
        return None
