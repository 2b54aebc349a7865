"""Latency predictor of llm-d and of the Gateway API inference extension, over HTTP: both its servers on one port.

    python -m runners.serve env=routing policy=predicted_latency cluster=... protocols=[latency_predictor]

Set TRAINING_SERVER_URL and PREDICTION_SERVER_URL of the endpoint picker to the address. `policy=predicted_latency`
learns from the observations that the picker sends (`/add_training_data_bulk`) and answers 503 until it has enough;
`policy=predicted_latency_profile` answers from the calibrated profile of the fleet's first engine. The model's type
reads `lightgbm` for both: of the names that the Go client knows, it is the one that has it ask over HTTP.

Contract: llm-d/llm-d-latency-predictor, src/llm_d_latency_predictor/prediction_server.py (147d369) and
training_server.py of 2026; client: sidecars/latencypredictorasync of kubernetes-sigs/gateway-api-inference-extension
(2edd944). Model files (`/bundle/...`) are not offered, since no other prediction server is needed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from serving_gym.baselines.common.routers.predicted_latency import PredictedLatencyPolicy
from serving_gym.baselines.common.routers.predicted_latency_profile import PredictedLatencyProfilePolicy
from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.serving.bounded_site import BoundedSite
from serving_gym.runners.serving.json_body import json_object
from serving_gym.runners.serving.latency_models import (
    POD_TYPES,
    LearnedServedLatency,
    ProfileServedLatency,
    ServedLatency,
)

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

MOST_ROWS = 10_000
_MOST_BYTES = 16 * 2**20
_TRAIN_EVERY_S = (
    1.0  # llm-d's `LATENCY_RETRAINING_INTERVAL_SEC`; the policy's `retrain_s` is the least time between two
)
_OPEN_PATHS = ("/health", "/healthz", "/readyz")  # without a token
_IN_A_THREAD = 200  # rows from which a prediction would keep others waiting
_MODEL_TYPE = "lightgbm"
_SHARES = ("kv_cache_percentage", "prefix_cache_score")
_COUNTS = ("input_token_length", "num_request_waiting", "num_request_running", "num_tokens_generated")
_OPTIONAL_COUNTS = ("prefill_tokens_in_flight", "decode_tokens_in_flight")
_OBSERVED = ("actual_ttft_ms", "actual_tpot_ms")


class LatencyPredictor:
    """The listener.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: the policy predicts no latencies.
    """

    environments: ClassVar[tuple[str, ...]] = ("routing",)
    checks_token: ClassVar[bool] = True
    default_port: ClassVar[int] = 8000  # of llm-d's training server

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        self.service, self.address, self.port = service, address, port
        self.model = _model_of(service)
        self._site: BoundedSite | None = None
        self._training: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Starts listening and training; returns the address."""
        from aiohttp import web

        routes = [
            web.post("/predict", self._predict),
            web.post("/predict/bulk", self._predict_bulk),
            web.post("/predict/bulk/strict", self._predict_bulk),
            web.post("/add_training_data_bulk", self._add),
            web.post("/flush", self._flush),
            web.get("/status", self._status),
            web.get("/health", self._health),
            web.get("/healthz", self._health),
            web.get("/readyz", self._ready),
            web.get("/metrics", self._metrics),
            web.get("/model/download/info", self._model_info),
            web.get("/data/status", self._data_status),
        ]
        self._site = BoundedSite(
            self.service,
            self.address,
            self.port,
            routes,
            _MOST_BYTES,
            lambda path: path not in _OPEN_PATHS,
            lambda why: {"detail": why},
        )
        self._url = await self._site.start()
        self.port = self._site.port
        self._training = asyncio.create_task(self._train())
        return self._url

    async def stop(self) -> None:
        """Stops listening and training; a model that is being trained is finished first."""
        if self._training is not None:
            self._training.cancel()
            await asyncio.gather(self._training, return_exceptions=True)
        if self._site is not None:
            await self._site.stop()

    async def _train(self) -> None:
        while True:
            await asyncio.sleep(_TRAIN_EVERY_S)
            try:
                if await self.model.train():
                    self.service.count("latency_models")
            except Exception as error:  # noqa: BLE001 -- the next observations may mend it
                self.service.count("latency_trainings_failed")
                self.service.log.warning("training failed", extra={"fields": {"error": str(error)}})

    async def _predict(self, request: web.Request) -> web.Response:
        try:
            row = _row(await json_object(request), "the request")
        except ValueError as error:
            return _refused(422, str(error))
        if not self.model.ready:
            return _refused(503, "Models not ready")
        return _answer((await self._predicted([row]))[0])

    async def _predict_bulk(self, request: web.Request) -> web.Response:
        begun_s = time.perf_counter()
        try:
            rows = [
                _row(row, f"requests[{i}]")
                for i, row in enumerate(_list(await json_object(request), "requests"))
            ]
        except ValueError as error:
            return _refused(422, str(error))
        if not self.model.ready:
            return _refused(503, "Models not ready")
        predictions = await self._predicted(rows)
        answer = {
            "predictions": predictions,
            "total_requests": len(rows),
            "successful_predictions": len(rows),
            "failed_predictions": 0,
            "processing_time_ms": 1e3 * (time.perf_counter() - begun_s),
        }
        return _answer(answer if request.path.endswith("/strict") else answer | {"errors": []})

    async def _predicted(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(rows) < _IN_A_THREAD:
            latency_ms = self.model.predict(rows)
        else:
            latency_ms = await asyncio.to_thread(self.model.predict, rows)
        self.service.count("latency_predictions", len(rows))
        common = {"predicted_at": _time(time.time()), **self._describe()}
        return [{"ttft_ms": float(ttft), "tpot_ms": float(tpot)} | common for ttft, tpot in latency_ms.T]

    def _describe(self) -> dict[str, Any]:
        model = self.model
        return {
            "model_type": _MODEL_TYPE,
            "objective_type": "quantile" if model.quantile > 0 else "mean",
            "quantile": model.quantile or 0.5,
            "last_model_load": None if model.trained_at is None else _time(model.trained_at),
        }

    async def _add(self, request: web.Request) -> web.Response:
        try:
            listed = _list(await json_object(request), "entries", least=0)
            entries = [_row(entry, f"entries[{i}]", _OBSERVED) for i, entry in enumerate(listed)]
        except ValueError as error:
            return _refused(422, str(error))
        self.model.add(entries)
        self.service.count("latency_observations", len(entries))
        return _answer({"message": f"Accepted {len(entries)} training samples."}, 202)

    async def _flush(self, request: web.Request) -> web.Response:
        ttft, tpot = self.model.flush()
        return _answer(
            {
                "success": True,
                "flushed_at": _time(time.time()),
                "ttft_training_samples_flushed": ttft,
                "tpot_training_samples_flushed": tpot,
                "ttft_test_samples_flushed": 0,
                "tpot_test_samples_flushed": 0,
                "metrics_cleared": False,
                "message": f"Successfully flushed: {ttft} TTFT and {tpot} TPOT training samples",
            }
        )

    async def _status(self, request: web.Request) -> web.Response:
        ready = self.model.ready
        return _answer(
            {
                "is_ready": ready,
                **self._describe(),
                "training_server_url": self._url,
                "models_exist": {"ttft_model": ready, "tpot_model": ready},
                "ensemble_active": False,
            }
        )

    async def _health(self, request: web.Request) -> web.Response:
        return _answer({"status": "ok", "service": "http-based-latency-predictor"})

    async def _ready(self, request: web.Request) -> web.Response:
        if not self.model.ready:
            return _refused(503, "Models are not ready")
        return _answer({"status": "ready", **self._describe()})

    async def _metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web
        from prometheus_client import generate_latest

        ttft, tpot = self.model.samples
        own = (
            f'training_samples_count{{model="ttft"}} {ttft}\ntraining_samples_count{{model="tpot"}} {tpot}\n'
        )
        text = generate_latest(self.service.registry).decode() + own
        return web.Response(text=text, content_type="text/plain")

    async def _model_info(self, request: web.Request) -> web.Response:
        ready = self.model.ready
        return _answer(
            {
                **self._describe(),
                "available_endpoints": {},
                "model_status": {"ttft_model_ready": ready, "tpot_model_ready": ready},
            }
        )

    async def _data_status(self, request: web.Request) -> web.Response:
        ttft, tpot = self.model.samples
        return _answer(
            {
                "training_data": {"ttft_samples": ttft, "tpot_samples": tpot, "total_samples": ttft + tpot},
                "test_data": {"ttft_samples": 0, "tpot_samples": 0, "total_samples": 0},
                "model_ready": self.model.ready,
                "last_retrain": None if self.model.trained_at is None else _time(self.model.trained_at),
            }
        )


def _model_of(service: PolicyService) -> ServedLatency:
    policy = load_policy(service.config.policy, "routing")
    if isinstance(policy, PredictedLatencyPolicy):
        return LearnedServedLatency(policy.config)
    if isinstance(policy, PredictedLatencyProfilePolicy):
        return ProfileServedLatency(service.env.policy_spec.fleet)
    names = (PredictedLatencyPolicy.name, PredictedLatencyProfilePolicy.name)
    raise ValueError(
        f"protocol latency_predictor needs policy={' or policy='.join(names)}, got {policy.name}: "
        "other policies predict no latencies"
    )


def _list(body: Mapping[str, Any], name: str, least: int = 1) -> list[Any]:
    """A list of the body.

    Raises:
        ValueError: it is none, or too short or too long.
    """
    found = body.get(name)
    if not isinstance(found, list) or not least <= len(found) <= MOST_ROWS:
        got = f"{len(found)}" if isinstance(found, list) else type(found).__name__
        raise ValueError(f"{name} must be a list of {least} to {MOST_ROWS} objects, got {got}")
    return found


def _row(values: Any, where: str, observed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The features of a request, checked as the contract says; unknown keys are ignored.

    Args:
        values: Its object.
        where: What it is, for messages.
        observed: Latencies that it must have too.

    Raises:
        ValueError: a feature is missing or not allowed.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be an object, got {type(values).__name__}")
    row: dict[str, Any] = {name: _number(values, name, where, 1.0) for name in _SHARES}
    row |= {name: round(_number(values, name, where)) for name in _COUNTS}
    row |= {name: round(_number(values, name, where)) if name in values else 0 for name in _OPTIONAL_COUNTS}
    row |= {name: _number(values, name, where) for name in observed}
    row["pod_type"] = values.get("pod_type") or ""
    check_choice(f"{where}.pod_type", str(row["pod_type"]), POD_TYPES)
    return row


def _number(values: Mapping[str, Any], name: str, where: str, most: float = 2.0**31) -> float:
    if name not in values:
        raise ValueError(f"{where}.{name} is missing")
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{where}.{name} must be a number, got {value!r}")
    if not 0 <= value <= most:
        raise ValueError(f"{where}.{name} must lie in [0, {most:g}], got {value}")
    return float(value)


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _answer(body: Any, status: int = 200) -> web.Response:
    from aiohttp import web

    return web.json_response(body, status=status)


def _refused(status: int, reason: str) -> web.Response:
    return _answer({"detail": reason}, status)
