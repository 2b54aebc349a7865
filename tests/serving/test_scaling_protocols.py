"""Served autoscaling policies by the contracts of Kubernetes, KEDA, AIBrix and Dynamo's planner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import runpy
import shutil
import ssl
import subprocess
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving_gym.baselines.common.autoscalers.horizontal import replicas_for_external
from serving_gym.runners.serving.aibrix import AIBrixListener
from serving_gym.runners.serving.dynamo_planner import DynamoPlannerListener
from serving_gym.runners.serving.dynamo_registration import DynamoRegistration
from serving_gym.runners.serving.external_metrics import ExternalMetricsListener, selects
from serving_gym.runners.serving.grpc_methods import GRPCServer, Method
from serving_gym.runners.serving.keda import KEDAListener
from serving_gym.runners.serving.proto import dynamo_planner_pb2 as planner
from serving_gym.runners.serving.proto import externalscaler_pb2 as scaler
from serving_gym.runners.serving.scaling_control import Decision, ScalingControl
from tests.live.fake_server import FakeServer
from tests.paths import ROOT
from tests.serving.scaling_service import StandIn

CONTROLLER = runpy.run_path(str(ROOT / "examples/serve/kubernetes/run.py"))
HPA = ("policy=hpa_waiting", "env.history_bin_s=1", "env.recent_bin_s=1")
VALUES = "/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/desired_replicas"


def decided(control, desired):
    """Lets the control have decided."""
    control.decision = Decision(desired, desired, 2, 1.8e9, True)


@contextlib.asynccontextmanager
async def listening(kind, *words, **scaling):
    """A listener, its address and its service, until the end of the block."""
    service = StandIn(*(words or HPA), **scaling)
    listener = kind(service, "127.0.0.1", 0)
    address = await listener.start()
    try:
        yield listener, address, service
    finally:
        await listener.stop()


async def got(address, path, body=None, **words):
    """Status and text of an answer."""
    async with aiohttp.ClientSession() as session:
        ask = (
            session.get(address + path, **words) if body is None else session.post(address + path, data=body)
        )
        async with ask as response:
            return response.status, await response.text()


# --- Kubernetes ---


def test_the_external_metrics_api_is_found_and_answers_a_list_of_values():
    async def run():
        async with listening(ExternalMetricsListener, target="default/llama") as (listener, at, _):
            before = await got(at, VALUES.format("default"))
            decided(listener.control, 7)
            paths = ["/apis", "/apis/external.metrics.k8s.io", "/apis/external.metrics.k8s.io/v1beta1"]
            found = [json.loads((await got(at, path))[1]) for path in paths]
            values = json.loads((await got(at, VALUES.format("default"), params={"labelSelector": ""}))[1])
            return before, found, values

    (status, body), (groups, group, resources), values = asyncio.run(run())
    failure = json.loads(body)
    assert (status, failure["kind"], failure["reason"], failure["code"]) == (
        503,
        "Status",
        "ServiceUnavailable",
        503,
    )
    assert groups["groups"][0]["name"] == group["name"] == "external.metrics.k8s.io"
    assert (
        group["preferredVersion"]["groupVersion"]
        == resources["groupVersion"]
        == "external.metrics.k8s.io/v1beta1"
    )
    (resource,) = resources["resources"]
    assert (resource["name"], resource["namespaced"], resource["verbs"]) == (
        "desired_replicas",
        True,
        ["get"],
    )
    assert (values["kind"], values["apiVersion"]) == (
        "ExternalMetricValueList",
        "external.metrics.k8s.io/v1beta1",
    )
    (value,) = values["items"]
    assert (value["metricName"], value["value"]) == ("desired_replicas", "7")  # a Quantity is a string
    assert value["metricLabels"] == {"policy": "hpa_waiting", "target": "llama"}
    assert datetime.fromisoformat(value["timestamp"]).timestamp() == 1.8e9


@pytest.mark.parametrize(
    ("path", "status", "items"),
    [
        (VALUES.format("default"), 200, 1),
        (VALUES.format("default") + "?labelSelector=target%3Dllama", 200, 1),
        (VALUES.format("default") + "?labelSelector=target%3Dother", 200, 0),
        (VALUES.format("other"), 200, 0),
        (VALUES.format("default") + "?labelSelector=%3D%3D", 400, None),
        (VALUES.format("default").replace("desired", "wanted"), 404, None),
    ],
)
def test_values_of_other_targets_are_not_told(path, status, items):
    async def run():
        async with listening(ExternalMetricsListener, target="default/deployments/llama") as (
            listener,
            at,
            _,
        ):
            decided(listener.control, 7)
            return await got(at, path)

    answered, body = asyncio.run(run())
    assert answered == status
    assert len(json.loads(body).get("items") or ()) == (items or 0)


@pytest.mark.parametrize(
    ("selector", "met"),
    [
        ("", True),
        ("a=1", True),
        ("a==1,b!=3", True),
        ("a!=1", False),
        ("a in (1, 2),b notin (3)", True),
        ("a in (2,3)", False),
        ("c notin (2)", True),
        ("a", True),
        ("!c", True),
        ("!a", False),
        ("c", False),
    ],
)
def test_label_selectors(selector, met):
    assert selects(selector, {"a": "1", "b": "2"}) is met


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_hpas_formula_yields_just_the_number_that_is_wanted(tolerance):
    """With a tolerance of 0 always; with Kubernetes' 0.1 unless a change is at most a tenth of what there is."""
    for present in range(1, 129):
        for desired in range(129):
            found = CONTROLLER["replicas_by_hpa"](present, CONTROLLER["milli_of"](str(desired)), tolerance)
            assert found == replicas_for_external(float(desired), 1.0, present, tolerance)
            swallowed = abs(1.0 - desired / present) <= tolerance
            assert found == (present if swallowed else desired)
            assert not (swallowed and tolerance and present < 10 and present != desired)


def test_the_gauge_and_the_json_have_the_same_number():
    async def run():
        async with listening(ExternalMetricsListener) as (listener, at, _):
            early = await got(at, "/v1/desired_replicas")
            body = {
                "replicas": {
                    "a": {"num_running": 1, "num_waiting": 9},
                    "b": {"num_running": 1, "num_waiting": 9},
                }
            }
            while listener.control.decision is None:
                assert (await got(at, "/v1/readings", json.dumps(body)))[0] == 200
                await asyncio.sleep(0.2)
            return early, await got(at, "/v1/desired_replicas"), await got(at, "/metrics")

    early, (status, found), (_, page) = asyncio.run(run())
    assert early[0] == 503
    assert json.loads(early[1])["desired_replicas"] is None
    assert status == 200
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["desired_replicas"] == json.loads(found)["desired_replicas"] == 4  # 18 waiting, 5 each
    assert samples["serving_gym_ready_replicas"] == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "the body is not JSON"),
        ("[" * 100_000, "the body is not JSON"),
        ("\xff", "the body is not JSON"),
        ("{}", "replicas must be an object"),
        ('{"replicas": {"a": {"num_running": 1e999}}}', "must be a finite number"),
    ],
)
def test_garbage_that_is_posted_is_refused_with_a_sentence(body, said):
    async def run():
        async with listening(ExternalMetricsListener) as (_, at, _):
            return await got(at, "/v1/readings", body.encode("latin-1"))

    status, answer = asyncio.run(run())
    assert status == 400
    assert said in json.loads(answer)["error"]


def test_pages_of_replicas_are_read_and_readings_are_then_not_posted():
    async def run(url):
        scaling = {"replicas": (url,), "scrape_interval_s": 0.1, "stale_after_s": 60.0}
        words = (*HPA, "policy.params.sync_s=0.5")
        async with listening(ExternalMetricsListener, *words, **scaling) as (listener, at, service):
            async with asyncio.timeout(30):
                while listener.control.decision is None:
                    await asyncio.sleep(0.1)
            refused = await got(at, "/v1/readings", '{"replicas": {}}')
            held = await got(at, "/v1/readings", '{"num_held": 30}')
            asked = len(service.states)
            async with asyncio.timeout(30):
                while len(service.states) < asked + 1:
                    await asyncio.sleep(0.1)
            assert held[0] == 200
            return refused, listener.control, service

    with FakeServer() as server:
        (status, said), control, service = asyncio.run(run(server.url))
    assert status == 400
    assert "scaling.replicas are read" in said
    assert service.states[-1].endpoints[0].num_held == 30
    assert control.decision.present == 1
    assert {"requests_total", "input_tokens_total"} & control.view.meter.heard
    assert len(service.states[-1].endpoints[0].running) == 1


@pytest.mark.parametrize(
    "mishap",
    [
        {"metrics_status": 502},
        {"metrics_delay_s": 60.0},
        {"rewrite_page": lambda page: page.replace("running", "runing")},
        {"rewrite_page": lambda page: page[: len(page) // 2]},
        {"rewrite_page": lambda page: re.sub(r"(num_requests_running\S*) .*", r"\1 NaN", page)},
    ],
    ids=["status", "hangs", "renamed", "cut", "nan"],
)
def test_a_replica_that_fails_is_stale_and_back_again_and_stops_nothing(mishap):
    """One of two fails: within the ratio decisions go on with its last reading; the round is bounded."""

    async def until(met):
        async with asyncio.timeout(30):
            while not met():
                await asyncio.sleep(0.05)

    async def run(urls, failing):
        words = {"replicas": urls, "scrape_interval_s": 0.2, "stale_after_s": 1.0, "most_stale_ratio": 0.5}
        async with listening(ExternalMetricsListener, *HPA, "policy.params.sync_s=0.3", **words) as (
            one,
            _,
            service,
        ):
            control, replicas = one.control, one.control.replicas
            await until(lambda: control.decision is not None and control.decision.present == 2)
            usual = dict(vars(failing.behaviour))
            vars(failing.behaviour).update(mishap)
            await until(lambda: replicas.stale(control.now_s) == [failing.url])
            asked = len(service.states)
            await until(lambda: len(service.states) > asked + 1)  # it goes on
            shown = len(service.states[-1].endpoints[0].running), control.problem
            vars(failing.behaviour).update(usual)
            await until(lambda: not replicas.stale(control.now_s))
            return shown, service.counts

    with FakeServer() as one, FakeServer() as other:
        shown, counts = asyncio.run(run((one.url, other.url), other))
    assert shown == (2, "")
    if "rewrite_page" not in mishap:
        assert counts["scaling_read_failures", "page"] > 0


def certificate(folder, name):
    """A certificate of its own for localhost."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return str(cert), str(key)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_tls_with_certificates_of_clients(tmp_path):
    cert, key = certificate(tmp_path, "server")
    own_cert, own_key = certificate(tmp_path, "client")
    words = {"tls_certificate": cert, "tls_key": key, "tls_client_ca": own_cert}
    trust, known = ssl.create_default_context(cafile=cert), ssl.create_default_context(cafile=cert)
    known.load_cert_chain(own_cert, own_key)

    async def run():
        async with listening(ExternalMetricsListener, **words) as (_, at, _):
            assert at.startswith("https://")
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await got(at, "/healthz", ssl=trust)
            return await got(at, "/healthz", ssl=known)

    assert asyncio.run(run()) == (200, "ok")
    with pytest.raises(ValueError, match=r"scaling.tls_certificate=.*missing.pem"):
        ExternalMetricsListener(StandIn(*HPA, tls_certificate="missing.pem", tls_key=key), "127.0.0.1", 0)


# --- KEDA ---


def stub(channel, method, request, response, streams=False):
    """A method of a service."""
    make = channel.unary_stream if streams else channel.unary_unary
    return make(
        method, request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )


def keda(channel):
    """The external scaler."""
    path, ref = "/externalscaler.ExternalScaler/", scaler.ScaledObjectRef
    return SimpleNamespace(
        is_active=stub(channel, path + "IsActive", ref, scaler.IsActiveResponse),
        stream=stub(channel, path + "StreamIsActive", ref, scaler.IsActiveResponse, streams=True),
        spec=stub(channel, path + "GetMetricSpec", ref, scaler.GetMetricSpecResponse),
        metrics=stub(channel, path + "GetMetrics", scaler.GetMetricsRequest, scaler.GetMetricsResponse),
        stream_spec=stub(channel, path + "StreamMetricSpec", ref, scaler.GetMetricSpecResponse, streams=True),
    )


LLAMA = scaler.ScaledObjectRef(name="llama", namespace="default", scalerMetadata={"scalerAddress": "x:1"})


def test_keda_gets_a_target_of_one_and_the_number_that_is_wanted():
    async def run():
        async with (
            listening(KEDAListener, target="default/llama") as (listener, at, _),
            grpc.aio.insecure_channel(at) as channel,
        ):
            keda_of, found = keda(channel), []
            (spec,) = (await keda_of.spec(LLAMA)).metricSpecs
            asked = scaler.GetMetricsRequest(scaledObjectRef=LLAMA, metricName=spec.metricName)
            for desired in (0, 1, 5):
                decided(listener.control, desired)
                (value,) = (await keda_of.metrics(asked)).metricValues
                active = (await keda_of.is_active(LLAMA)).result
                found.append((value.metricName, value.metricValue, value.metricValueFloat, active))
            return spec, found

    spec, found = asyncio.run(run())
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("desired_replicas", 1, 1.0)
    assert found == [("desired_replicas", n, float(n), n > 0) for n in (0, 1, 5)]


def test_keda_is_told_when_there_is_no_decision_no_such_metric_and_another_target():
    async def run():
        codes = []
        async with (
            listening(KEDAListener, target="default/llama") as (_, at, _),
            grpc.aio.insecure_channel(at) as channel,
        ):
            calls = keda(channel)
            other = scaler.ScaledObjectRef(name="other", namespace="default")
            unknown = scaler.GetMetricsRequest(scaledObjectRef=LLAMA, metricName="queue")
            for call in (calls.is_active(LLAMA), calls.is_active(other), calls.metrics(unknown)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                codes.append((caught.value.code().name, caught.value.details()))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await calls.stream_spec(LLAMA).read()
        return codes, caught.value.code().name

    codes, optional = asyncio.run(run())
    assert codes == [
        ("UNAVAILABLE", "there is no decision yet: no replica has been heard of yet"),
        ("NOT_FOUND", "scaling.target is default/llama, not default/other"),
        ("NOT_FOUND", "there is no metric 'queue', only desired_replicas"),
    ]
    assert optional == "UNIMPLEMENTED"  # KEDA then asks GetMetricSpec


def test_keda_is_pushed_what_changes_and_nothing_else():
    async def run():
        async with (
            listening(KEDAListener) as (listener, at, _),
            grpc.aio.insecure_channel(at) as channel,
        ):
            call, pushed = keda(channel).stream(LLAMA), []

            async def follow():
                async for answer in call:
                    pushed[len(pushed) :] = [answer.result]

            following = asyncio.create_task(follow())
            for desired in (2, 3, 0, 0, 1):
                decided(listener.control, desired)
                async with listener.control._changed:
                    listener.control._changed.notify_all()
                await asyncio.sleep(0.3)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            return pushed

    assert asyncio.run(run()) == [True, False, True]


def test_a_stream_does_not_hinder_the_end():
    async def run():
        async with asyncio.timeout(20):
            async with listening(KEDAListener) as (_, at, _):
                channel = grpc.aio.insecure_channel(at)
                call = keda(channel).stream(LLAMA)
                reading = asyncio.create_task(call.read())
                await asyncio.sleep(0.2)
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await reading
            await channel.close()

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_keda_speaks_tls(tmp_path):
    cert, key = certificate(tmp_path, "server")
    credentials = grpc.ssl_channel_credentials(Path(cert).read_bytes())

    async def run():
        async with (
            listening(KEDAListener, tls_certificate=cert, tls_key=key) as (listener, at, _),
            grpc.aio.secure_channel(at, credentials) as channel,
        ):
            decided(listener.control, 3)
            return (await keda(channel).is_active(LLAMA)).result

    assert asyncio.run(run())
    with pytest.raises(ValueError, match=r"missing.pem cannot be read: No such file"):
        KEDAListener(StandIn(*HPA, tls_certificate="missing.pem", tls_key=key), "127.0.0.1", 0)


# --- AIBrix ---


def test_aibrix_reads_a_page_as_its_optimizer_has_it():
    async def run():
        async with listening(AIBrixListener, target="default/llama") as (listener, at, _):
            early = await got(at, "/metrics/default/llama")
            decided(listener.control, 3)
            paths = ("/metrics/default/llama", "/metrics", "/metrics/default/other")
            return early, [await got(at, path) for path in paths]

    early, (own, short, other) = asyncio.run(run())
    assert (early[0], other[0]) == (503, 404)
    assert own == short
    (family,) = text_string_to_metric_families(own[1])
    (sample,) = family.samples
    assert (family.type, sample.name, sample.labels, sample.value) == (
        "gauge",
        "vllm:deployment_replicas",
        {"model_name": "llama-2-13b"},
        3.0,
    )


# --- Dynamo's planner ---


class Planner:
    """Calls the stages of the plug-in."""

    def __init__(self, channel):
        for stage in ("Predict", "Propose", "Reconcile", "Constrain"):
            kinds = getattr(planner, f"{stage}StageRequest"), getattr(planner, f"{stage}StageResponse")
            setattr(self, stage, stub(channel, f"/dynamo.planner.plugin.v1.{stage}Plugin/{stage}", *kinds))
        path = "/dynamo.planner.plugin.v1.PluginLifecycle/"
        self.bootstrap = stub(
            channel, path + "Bootstrap", planner.BootstrapRequest, planner.BootstrapResponse
        )
        self.reset = stub(channel, path + "Reset", planner.ResetRequest, planner.ResetResponse)

    async def tick(self, number, stages=("Propose",), **traffic):
        """A tick: the answers of some stages."""
        words = {"duration_s": 60.0, "num_req": 60.0, "isl": 1000.0, "osl": 100.0} | traffic
        observed = planner.ObservationData(
            traffic=planner.TrafficMetrics(**words),
            workers=planner.WorkerState(ready_decode=2, expected_decode=3),
        )
        context = planner.PipelineContext(request_id=f"tick-{number}", observations=observed)
        requests = {stage: getattr(planner, f"{stage}StageRequest")(context=context) for stage in stages}
        return [await getattr(self, stage)(request) for stage, request in requests.items()]


class Clock:
    """A clock that is told the time."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@contextlib.asynccontextmanager
async def planning(*words, mode="live", **scaling):
    """A planner, the listener, and the clock that the listener goes by."""
    service, clock = StandIn(*words, mode=mode, **scaling), Clock()
    ScalingControl._of[service] = ScalingControl(service, service.config.scaling, clock)
    listener = DynamoPlannerListener(service, "127.0.0.1", 0)
    address = await listener.start()
    async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as channel:
        try:
            yield Planner(channel), service, clock
        finally:
            await listener.stop()


RATE = ("policy=hpa_rate", "policy.params.rate_window_s=60")


def test_the_planner_gets_a_proposal_within_bounds_and_the_bounds():
    async def run():
        async with planning(*RATE, without=("gauges",), max_replicas=6) as (plugin, service, clock):
            stages = ("Propose", "Reconcile", "Constrain")
            for number in range(10):
                clock.now_s += 60.0
                answers = await plugin.tick(number, stages, num_req=60.0 * 40)
            return answers, service.states, service.counts

    (proposed, reconciled, constrained), states, counts = asyncio.run(run())
    (target,) = proposed.override.targets
    assert (target.sub_component_type, target.type) == ("decode", planner.SET)
    assert target.replicas == 6  # 40,000 tokens/s are more than six serve
    assert reconciled.override == proposed.override
    bounds = {each.type: each.replicas for each in constrained.override.targets}
    assert bounds == {planner.AT_LEAST: 1, planner.AT_MOST: 6}
    assert counts["dynamo_ticks",] == 10  # once for all stages of a tick
    (own,) = states[-1].endpoints
    assert len(own.running), len(own.starting) == (2, 1)
    rates = own.history.rows["input_tokens"] / own.history.bin_s
    np.testing.assert_allclose(rates, 40_000.0, rtol=1e-6)


def test_without_gauges_the_planner_is_told_nothing_unless_the_policy_reads_none(caplog):
    async def run():
        async with planning(*HPA) as (plugin, service, clock):
            for number in range(5):
                clock.now_s += 60.0
                (proposed,) = await plugin.tick(number)
            return proposed, service

    proposed, service = asyncio.run(run())
    assert proposed.WhichOneof("result") == "accept"
    assert not service.states
    assert "none of 2 replicas has reported num_running and num_waiting yet" in caplog.text


@pytest.mark.parametrize("stage", ["Propose", "Reconcile", "Constrain"])
def test_in_advisory_mode_every_stage_accepts(stage):
    async def run():
        async with planning(*RATE, mode="shadow", without=("gauges",)) as (plugin, service, clock):
            for number in range(5):
                clock.now_s += 60.0
                (answer,) = await plugin.tick(number, (stage,))
            return answer, service

    answer, service = asyncio.run(run())
    assert answer.WhichOneof("result") == "accept"
    assert service.states  # the policy is asked all the same


def test_a_prediction_needs_an_hour_of_traffic():
    async def run():
        async with planning(*RATE, without=("gauges",)) as (plugin, _, clock):
            found = []
            for number in range(70):
                clock.now_s += 60.0
                found += await plugin.tick(number, ("Predict",), num_req=120.0)
            return found

    found = asyncio.run(run())
    assert not found[10].HasField("predictions")
    assert found[10].reason == "a forecast needs 3600 s of traffic, and there are 600 s"
    predicted = found[-1].predictions
    assert predicted.predicted_num_req == pytest.approx(120.0, rel=1e-3)
    assert predicted.predicted_isl == pytest.approx(1000.0, rel=1e-3)
    assert predicted.predicted_osl == pytest.approx(100.0, rel=1e-3)
    assert not predicted.HasField("predicted_kv_hit_rate")


def test_windows_that_overlap_or_have_no_numbers_are_neither_counted_twice_nor_as_nothing():
    async def run():
        async with planning(*RATE, without=("gauges",)) as (plugin, service, clock):
            for number in range(60):
                clock.now_s += 10.0  # ticks of 10 s, windows of 60 s
                gone = 20 <= number < 26
                words = {"isl": math.nan} if gone else {}
                await plugin.tick(number, num_req=60.0, **words)
            return service.states[-1].endpoints[0].history

    history = asyncio.run(run())
    np.testing.assert_allclose(history.rows["requests"] / history.bin_s, 1.0, rtol=1e-6)


class Registry:
    """The planner's registry, which forgets at times."""

    def __init__(self):
        self.registered, self.beats, self.gone, self.refused = {}, [], [], 1

    def services(self):
        kinds = {"Register": self.register, "Heartbeat": self.heartbeat, "Unregister": self.unregister}
        methods = {
            name: Method(answer, getattr(planner, f"{name}Request"), getattr(planner, f"{name}Response"))
            for name, answer in kinds.items()
        }
        return {"dynamo.planner.plugin.v1.PluginRegistry": methods}

    async def register(self, asked, context):
        if self.refused:
            self.refused -= 1
            return planner.RegisterResponse(accepted=False, reject_reason="auth rejected")
        self.registered[asked.plugin_id] = asked
        return planner.RegisterResponse(accepted=True, negotiated_protocol_version="1.0")

    async def heartbeat(self, asked, context):
        self.beats.append((asked.plugin_id, asked.auth_token))
        if len(self.beats) == 3:  # the planner was started anew
            self.registered.clear()
        return planner.HeartbeatResponse(ok=asked.plugin_id in self.registered)

    async def unregister(self, asked, context):
        self.gone.append(asked.plugin_id)
        return planner.UnregisterResponse(ok=self.registered.pop(asked.plugin_id, None) is not None)


def test_the_plug_in_registers_itself_again_and_again_and_goes_in_order(monkeypatch, caplog):
    monkeypatch.setenv("SERVING_GYM_DYNAMO_TOKEN", "secret")
    registry, service = Registry(), StandIn(*HPA)

    async def run():
        server = GRPCServer(registry.services(), "127.0.0.1", 0)
        at = await server.start()
        stages = ("propose", "constrain")
        registration = DynamoRegistration(service, at, "grpc://127.0.0.1:9", stages, beat_s=0.05)
        registration.start()
        async with asyncio.timeout(20):
            while len(registry.beats) < 8 or len(registry.registered) < 2:
                await asyncio.sleep(0.05)
        known = dict(registry.registered)
        await registration.stop()
        await server.stop()
        return known

    known = asyncio.run(run())
    assert sorted(known) == ["serving-gym-constrain", "serving-gym-propose"]
    asked = known["serving-gym-propose"]
    assert (asked.plugin_type, asked.endpoint, asked.protocol_version) == (
        "propose",
        "grpc://127.0.0.1:9",
        "1.0",
    )
    assert (asked.auth_token, asked.hold_policy) == ("secret", planner.HOLD_LAST)
    assert set(registry.beats) == {("serving-gym-propose", "secret"), ("serving-gym-constrain", "secret")}
    assert sorted(registry.gone) == sorted(known)
    assert service.counts["dynamo_registration_failures",] == 1
    assert "does not take propose: auth rejected" in caplog.text


def test_a_planner_that_is_not_there_is_counted_and_hinders_no_end(caplog):
    async def run():
        words = {"registry": "127.0.0.1:1", "without": ("gauges",)}
        async with asyncio.timeout(30), listening(DynamoPlannerListener, *RATE, **words) as (_, _, service):
            while not service.counts["dynamo_registration_failures",]:
                await asyncio.sleep(0.05)

    asyncio.run(run())
    assert "the planner's registry at 127.0.0.1:1 does not take propose" in caplog.text


def test_a_planner_on_another_machine_must_be_allowed():
    with pytest.raises(ValueError, match=r"scaling.registry=10.0.0.1:9099 is beyond"):
        DynamoPlannerListener(StandIn(*RATE, registry="10.0.0.1:9099"), "127.0.0.1", 0)


def test_sageserve_asks_for_its_window_of_traffic_first():
    async def run():
        words = ("policy=sageserve", "policy.params.strategy=LT-I")
        async with planning(*words, without=("gauges",)) as (plugin, _, clock):
            found = []
            for number in range(18):
                clock.now_s += 60.0
                (answer,) = await plugin.tick(number, num_req=60.0)
                found.append(answer.WhichOneof("result"))
            return (
                found,
                await plugin.bootstrap(planner.BootstrapRequest()),
                await plugin.reset(planner.ResetRequest()),
            )

    found, bootstrap, reset = asyncio.run(run())
    assert found == ["accept"] * 15 + ["override"] * 3  # 15 minutes
    assert bootstrap.ok
    assert bootstrap.message == "serving-gym: sageserve"
    assert reset.ok
