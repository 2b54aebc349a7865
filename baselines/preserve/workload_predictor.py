"""Tier 1: the service workload predictor (section 4.1): Algorithms 1 and 2 of one service."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from serving_gym.baselines.common.autoscaler import default_gpu
from serving_gym.baselines.common.forecasting.series import FloatArray, SeriesForecaster
from serving_gym.baselines.preserve.capability import Capability, profile
from serving_gym.baselines.preserve.mlstm import Mlstm, MlstmConfig
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.autoscaling.state import AutoscalingSpec, EndpointState
from serving_gym.envs.interface.scaling import Endpoint

MakeForecaster = Callable[[], SeriesForecaster]

# Time between two looks of a scaler, seconds. Section 4.3.2 tracks loads "continuously", without a number. Source:
# ours: 100 iterations, which are anticipated, take 7 s at section 5.5's 72.9 ms, and an instance a minute to start.
PERIOD_S = 10.0


@dataclass(frozen=True)
class WorkloadPredictorConfig:
    """Constants of the workload predictor.

    Attributes:
        window_s: Length of a window. Source: section 4.1 (10 minutes).
        retrain_s: Between two trainings. Source: section 4.1 ("e.g., daily").
        from_benchmark: Whether an instance is taken to serve what it was benchmarked at until windows have shown more.
            Source: ours; it stands for the windows of the past that the text profiles, of which only traffic is known.
        mlstm: Network and training.
    """

    window_s: float = 600.0
    retrain_s: float = 86_400.0
    from_benchmark: bool = True
    mlstm: MlstmConfig = field(default_factory=MlstmConfig)

    def __post_init__(self) -> None:
        check_positive(self, "window_s", "retrain_s")


@dataclass(frozen=True)
class Prediction:
    """What the next window is expected to bring.

    Attributes:
        prompt_tps: P'_{i+1}, tokens/s.
        response_tps: D'_{i+1}, tokens/s.
        instances: N_{i+1}; None: no capability has been seen yet.
    """

    prompt_tps: float
    response_tps: float
    instances: int | None


class WorkloadPredictor:
    """Prompt and response tokens of one service, two windows ahead.

    Until there is enough to train on, the last window stands for the coming ones.

    Attributes:
        capability: What an instance has been seen to serve.

    Args:
        config: Its constants; None: the defaults.
        seed: Of the networks.
        make: Makes each of the two forecasters; None: mLSTMs, as in the text.
        benchmark_tps: Prompt tokens/s that an instance serves within its promises; 0: it is not known.
    """

    def __init__(
        self,
        config: WorkloadPredictorConfig | None = None,
        seed: int = 0,
        make: MakeForecaster | None = None,
        benchmark_tps: float = 0.0,
    ) -> None:
        self.config = config or WorkloadPredictorConfig()
        self.capability = Capability()
        self.benchmark_tps = benchmark_tps if self.config.from_benchmark else 0.0
        make = make or (lambda: Mlstm(self.config.mlstm, seed))
        self._prompt, self._response = make(), make()
        self._trained_s = -math.inf
        self._fitted = False

    def predict(self, endpoint: EndpointState) -> Prediction:
        """Predicts window T_{i+1} at the beginning of T_i.

        Args:
            endpoint: With its history, whose last bin ends where T_i begins.
        """
        window_s = self.config.window_s
        history = endpoint.history
        prompts = history.rebinned("input_tokens", window_s) + history.rebinned("niw_input_tokens", window_s)
        responses = history.rebinned("output_tokens", window_s) + history.rebinned(
            "niw_output_tokens", window_s
        )
        violations = history.rebinned("violations", window_s)
        instances = history.rebinned("mean_instances", window_s) * (history.bin_s / window_s)
        self.capability = profile(prompts, responses, violations, instances, window_s, self.capability)
        if self.capability.mu_t == 0.0 and self.benchmark_tps and prompts.any():
            answers_tps = self.benchmark_tps * float(responses.sum() / prompts.sum())
            self.capability = Capability(self.benchmark_tps, answers_tps, self.benchmark_tps + answers_tps)
        self._train(history.end_s, prompts, responses)
        prompt, response = (
            self._two_ahead(forecaster, past) / window_s
            for forecaster, past in ((self._prompt, prompts), (self._response, responses))
        )
        needed = self.capability.instances_for(prompt, response) if self.capability.mu_t > 0 else None
        return Prediction(prompt, response, needed)

    def _train(self, now_s: float, prompts: FloatArray, responses: FloatArray) -> None:
        enough = len(prompts) > self.config.mlstm.history
        if enough and now_s - self._trained_s >= self.config.retrain_s:
            self._prompt.fit(prompts)
            self._response.fit(responses)
            self._trained_s, self._fitted = now_s, True

    def _two_ahead(self, forecaster: SeriesForecaster, past: FloatArray) -> float:
        """Tokens of the window after the one that begins now."""
        if not len(past):
            return 0.0
        return float(forecaster.forecast(past, 2)[-1] if self._fitted else past[-1])


def window_number(now_s: float, window_s: float) -> int:
    """Which window it is."""
    return int(np.floor(now_s / window_s + 1e-9))


def predictors(spec: AutoscalingSpec, config: WorkloadPredictorConfig) -> dict[Endpoint, WorkloadPredictor]:
    """A predictor for each endpoint of a setting.

    Args:
        spec: The setting.
        config: Their constants.
    """
    found = {}
    for number, endpoint in enumerate(spec.endpoints):
        gpu = default_gpu(spec, endpoint.model)
        tps = float(spec.capacity_tps[spec.models.index(endpoint.model), gpu])
        found[endpoint] = WorkloadPredictor(config, seed=number, benchmark_tps=tps)
    return found
