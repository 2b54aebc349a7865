"""An autoscaling policy asked at its own period about a deployment whose replicas come, go, restart and fall silent."""

from __future__ import annotations

import asyncio
import functools
import math
import time

import numpy as np
import pytest

from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE
from serving_gym.envs.live.discovery import Found, KubernetesAPI
from serving_gym.runners.serving.replica_metrics import read_page
from serving_gym.runners.serving.scaling_control import ScalingControl
from serving_gym.runners.serving.scaling_history import read_history, write_history
from serving_gym.runners.serving.scaling_replicas import Replica, posted, posted_held
from serving_gym.runners.serving.scaling_settings import ScalingSettings
from serving_gym.runners.serving.scaling_view import Meter
from tests.live.fake_kubernetes import FakeKubernetes
from tests.serving.scaling_service import StandIn

HPA = ("policy=hpa_waiting", "policy.params.in_stabilization_s=15")


class Clock:
    """A clock that is told the time."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


def made(*words, **scaling):
    """A service, its control and their clock."""
    service, clock = StandIn(*words, **scaling), Clock()
    return service, ScalingControl(service, service.config.scaling, clock), clock


def readings(count, waiting, **more):
    """Replicas with as many waiting requests each."""
    values = {"num_running": 4, "num_waiting": waiting, "kv_usage_ratio": 0.5}
    return {"replicas": {f"pod-{number}": values for number in range(count)}, **more}


def play(control, clock, seconds, body, every_s=5.0):
    """Posts the same readings for a while; what is desired after each."""
    found = []
    for _ in range(round(seconds / every_s)):
        clock.now_s += every_s
        asyncio.run(control.post(body))
        found.append(None if control.decision is None else control.decision.desired)
    return found


def test_more_waiting_requests_bring_replicas_within_the_bounds():
    _, control, clock = made(*HPA, max_replicas=6)
    assert play(control, clock, 30, readings(2, 0))[-1] == 1
    assert play(control, clock, 60, readings(2, 50, wanted=2))[-1] == 6
    assert (control.lowest, control.highest) == (1, 6)
    assert control.decision.proposed == 6


def test_the_policy_is_asked_at_its_own_period_and_its_last_decision_stands_in_between():
    service, control, clock = made(*HPA)
    play(control, clock, 60, readings(2, 0))
    assert [state.now_s for state in service.states] == [5.0, 20.0, 35.0, 50.0]  # every 15 s, hpa's sync_s


def test_replicas_that_were_asked_for_are_starting_until_they_are_given_up(caplog):
    service, control, clock = made(*HPA, start_within_s=60.0, stale_after_s=100.0)
    play(control, clock, 10, readings(2, 50))
    assert control.decision.desired == 6  # four more at a time
    play(control, clock, 15, readings(2, 50))
    (own,) = service.states[-1].endpoints
    assert own.instances["status"].tolist() == [InstanceStatus.RUNNING] * 2 + [InstanceStatus.STARTING] * 4
    play(control, clock, 75, readings(2, 50))
    assert len(service.states[-1].endpoints[0].present) == 2
    assert service.counts["scaling_unfollowed",] == 1
    assert len([text for text in caplog.messages if "were asked for" in text]) == 1


def test_what_a_source_says_is_wanted_goes_before_what_was_asked_for():
    service, control, clock = made(*HPA)
    play(control, clock, 20, readings(2, 50))
    play(control, clock, 15, readings(2, 50, wanted=3))
    assert len(service.states[-1].endpoints[0].present) == 3


def test_without_enough_fresh_readings_the_last_decision_stands_and_is_said_once(caplog):
    service, control, clock = made(*HPA, stale_after_s=20.0)
    play(control, clock, 20, readings(4, 5, wanted=4))
    silent = {"replicas": {f"pod-{number}": {} for number in range(4)}, "wanted": 4}
    play(control, clock, 20, silent)  # readings are fresh still
    before, asked = control.decision, len(service.states)
    play(control, clock, 60, silent)
    assert control.decision is before
    assert control.problem == "the readings of 4 of 4 replicas are older than 20 s"
    assert service.counts["scaling_stands", "stale"] > 1
    assert len([text for text in caplog.messages if "4 of 4 replicas are older" in text]) == 1
    assert len(service.states) == asked
    play(control, clock, 30, readings(4, 5, wanted=4))
    assert control.problem == ""


def test_a_stale_gauge_keeps_its_last_value_and_is_never_zero():
    service, control, clock = made(*HPA, stale_after_s=100.0)
    play(control, clock, 20, readings(2, 7, wanted=2))
    broken = {"num_running": 4, "num_waiting": float("nan"), "kv_usage_ratio": None}
    play(control, clock, 30, {"replicas": {"pod-0": broken, "pod-1": broken}, "wanted": 2})
    (own,) = service.states[-1].endpoints
    assert own.instances["num_waiting"].tolist() == [7, 7]
    assert own.utilization() == pytest.approx(0.5, abs=1e-3)


def test_no_answer_before_a_replica_has_been_read():
    service, control, clock = made(*HPA)
    assert set(play(control, clock, 60, {"replicas": {"pod-0": {}, "pod-1": {}}})) == {None}
    assert control.problem == "none of 2 replicas has reported num_running and num_waiting yet"
    assert not service.states


def test_a_replica_that_starts_and_one_that_drains():
    service, control, clock = made(*HPA)
    body = readings(2, 0, wanted=3)
    body["replicas"]["pod-2"] = {"ready": False}
    body["replicas"]["pod-3"] = {"num_running": 2, "num_waiting": 0, "draining": True}
    play(control, clock, 30, body)
    (own,) = service.states[-1].endpoints
    kinds = InstanceStatus.RUNNING, InstanceStatus.RUNNING, InstanceStatus.DRAINING, InstanceStatus.STARTING
    assert own.instances["status"].tolist() == list(kinds)
    assert own.instances["num_running"].tolist() == [4, 4, 2, 0]


def test_in_shadow_mode_replicas_stay_and_the_proposal_is_shown():
    service = StandIn(*HPA, mode="shadow")
    clock = Clock()
    control = ScalingControl(service, service.config.scaling, clock)
    play(control, clock, 30, readings(3, 50, wanted=3))
    assert (control.decision.desired, control.decision.proposed, control.decision.applies) == (3, 7, False)


def test_a_policy_that_fails_leaves_all_as_it_is():
    service, control, clock = made(*HPA)
    play(control, clock, 10, readings(2, 5))
    before = control.decision
    service.host.policy.act = lambda observation, state: 1 / 0
    play(control, clock, 60, readings(2, 50))
    assert control.decision is before
    assert "ZeroDivisionError" in control.problem
    assert service.counts["scaling_stands", "policy"] == 4  # at its period of 15 s


def test_a_policy_that_takes_long_does_not_stop_the_readings(monkeypatch):
    monkeypatch.setattr("serving_gym.runners.serving.scaling_control._AT_ONCE_S", 0.05)
    service, control, clock = made(*HPA)
    decide, asked = service.decide, []

    async def slowly(state):
        asked.append(state.now_s)
        await asyncio.sleep(0.5)
        return await decide(state)

    service.decide = slowly

    async def run():
        for _ in range(5):
            clock.now_s += 20.0
            await control.post(readings(2, 50))
        meanwhile = len(control.view.meter.times_s), control.decision, list(asked)
        async with asyncio.timeout(10):
            await control.changed(None)
        return meanwhile

    samples, decision, questions = asyncio.run(run())
    assert (samples, decision, questions) == (5, None, [20.0])  # one question at a time
    assert control.decision.desired == 6


def test_a_forecast_waits_for_history_and_for_tokens():
    _, control, clock = made("policy=sageserve", stale_after_s=100.0)
    assert set(play(control, clock, 60, readings(2, 50))) == {None}
    assert control.problem == "sageserve needs 900 s of traffic history, and there are 55 s"
    play(control, clock, 1000, readings(2, 50), every_s=50.0)
    assert control.problem == "sageserve needs the traffic history, and no source reports input_tokens_total"
    body = readings(2, 50, wanted=2)
    for second in range(3):
        for values in body["replicas"].values():
            values["input_tokens_total"] = 1e5 * second
        play(control, clock, 50, body, every_s=50.0)
    assert control.problem == ""
    assert control.decision is not None


@pytest.mark.parametrize(
    "policy", ["hpa_waiting", "keda_epp", "sageserve", "zoo/autoscaling", "hpa_rate", "kpa"]
)
def test_any_autoscaling_policy_comes_to_a_decision(policy):
    service, control, clock = made(f"policy={policy}", stale_after_s=100.0)
    body = readings(2, 30, wanted=2)
    for step in range(40):
        for values in body["replicas"].values():
            values["input_tokens_total"], values["requests_total"] = 4e5 * step, 40.0 * step
        play(control, clock, 30, body, every_s=30.0)
    assert control.problem == ""
    assert control.lowest <= control.decision.desired <= control.highest
    assert all(np.isfinite(state.endpoints[0].history.rows["input_tokens"]).all() for state in service.states)


def test_scaling_to_zero_needs_bounds_that_allow_it():
    for lowest, desired in ((None, 1), (0, 0)):
        words = ("policy=keda_epp", "policy.params.cooldown_s=30", "env.min_instances=0")
        _, control, clock = made(*words, min_replicas=lowest if lowest == 0 else 1)
        body = {"replicas": {"pod-0": {"num_running": 0, "num_waiting": 0}}, "wanted": 1}
        assert play(control, clock, 120, body)[-1] == desired


def test_the_history_outlives_the_process(tmp_path, caplog):
    path, words = tmp_path / "deep" / "history.json", ("policy=sageserve", "env.history_bin_s=60")
    bins, scaling = np.zeros(100, TRAFFIC_DTYPE), {"history": str(path), "stale_after_s": 200.0}
    bins["input_tokens"], bins["mean_instances"] = 6e5, 2.0
    write_history(path, 60.0, time.time() - 130.0, bins)
    service, control, clock = made(*words, **scaling)
    assert control.view.known_s(control.now_s) == 102 * 60.0  # two bins that are missing get the mean
    body = readings(2, 5, wanted=2)
    for step in range(3):
        for values in body["replicas"].values():
            values["input_tokens_total"] = 3e5 * step
        play(control, clock, 60, body, every_s=60.0)
    assert control.decision is not None  # sageserve waits for nothing
    np.testing.assert_allclose(service.states[-1].endpoints[0].history.rows["input_tokens"][:102], 6e5)
    control._keep_history()
    found = read_history(path, 60.0, control.view.begun_s + control.now_s, 1e9)
    assert len(found) == 104
    np.testing.assert_allclose(found["input_tokens"][-2:], 6e5)  # 2 replicas
    assert "2 bins are missing" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no history of traffic"),
        ('{"bin_s": 60, "ended_s": 0, "rows": {"tokens": []}}', "column 'tokens' is unknown"),
        ('{"bin_s": 60, "ended_s": 0, "rows": {"requests": [1], "input_tokens": [1, 2]}}', "equally long"),
        ('{"bin_s": 60, "ended_s": 0, "rows": {"requests": [NaN]}}', "finite numbers"),
        (
            '{"bin_s": 30, "ended_s": 0, "rows": {"requests": [1]}}',
            "has bins of 30 s, but env.history_bin_s is 60",
        ),
    ],
)
def test_files_that_are_no_history(tmp_path, text, said):
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_history(path, 60.0, 100.0, 1e9)


def test_a_history_that_ended_long_ago_is_not_used(tmp_path, caplog):
    path = tmp_path / "history.json"
    write_history(path, 60.0, 1e9, np.zeros(10, TRAFFIC_DTYPE))
    assert len(read_history(path, 60.0, 1e9 + 4000.0, 1e9)) == 0
    assert "ended 4000 s ago and is not used" in caplog.text


def test_what_the_target_is_to_have_is_read_from_the_cluster(tmp_path, monkeypatch, caplog):
    async def run():
        async with FakeKubernetes(tmp_path, replicas={"models/deployments/llama": 5}) as server:
            api = functools.partial(KubernetesAPI, server.url, tmp_path)
            monkeypatch.setattr("serving_gym.runners.serving.scaling_control.KubernetesAPI", api)
            _, control, clock = made(*HPA, target="models/llama", read_scale=True)
            await control._read(None)
            for _ in range(2):
                clock.now_s += 5.0
                await control.post(readings(2, 5))
            first = control.replicas.wanted, control.decision.present
            server.status, server.body = 503, b""
            await control._read(None)
            await control._read(None)
            return first, control.replicas.wanted, control.service.counts["scaling_read_failures", "scale"]

    first, after, failures = asyncio.run(run())
    assert first == (5, 5)
    assert (after, failures) == (None, 2)
    assert len([text for text in caplog.messages if "cannot be read" in text]) == 1


def test_counters_of_a_replica_that_was_there_before_count_from_its_first_reading():
    meter = Meter()
    for at_s, value in ((5.0, 1e9), (10.0, 1e9 + 50)):
        meter.note(at_s, 0.0, 1, {"input_tokens_total": {"a": value}}, {})
    meter.note(15.0, 0.0, 2, {"input_tokens_total": {"a": 1e9 + 50, "b": 30.0}}, {"b": 12.0})  # b is new
    assert meter.traffic(15.0, 15.0, 9).rows["input_tokens"].tolist() == [80.0]


def test_old_samples_are_put_together_and_say_the_same():
    long, short = Meter(60.0, 600.0, 7200.0), Meter(60.0, 1e9, 1e9)
    short._most = 10**9
    for second in range(1, 20_000):
        metrics = {"requests_total": {"a": float(second**1.5)}}
        for meter in (long, short):
            meter.note(float(second), second % 7, 2, metrics)
    assert len(long.times_s) < 9000
    for bins in ((60.0, 100), (5.0, 100)):
        one, other = (meter.traffic(bins[0], 19_999.0, bins[1]).rows for meter in (long, short))
        for name in ("requests", "mean_concurrency", "mean_instances"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-9)


def test_requests_arrive_as_they_end_or_wait():
    replica = Replica()
    total = []
    for ended, running, waiting in ((10, 2, 0), (11, 2, 1), (14, 0, 0), (13, 0, 0), (1, 1, 0), (3, 0, 0)):
        values = {"ended_total": ended, "num_running": running, "num_waiting": waiting}
        replica.take(values, 0.0, ())
        total.append(replica.values["requests_total"])
    assert total[:3] == [12.0, 14.0, 14.0]
    assert total[-1] >= total[-2] >= 14.0  # started anew, and nothing is taken back


PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prompt_tokens_total{model_name="m"} 1e+06
vllm:request_success_total{finished_reason="stop"} 5.0
vllm:request_success_total{finished_reason="length"} 6.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 12.5
vllm:time_to_first_token_seconds_count{model_name="m"} 11.0
process_start_time_seconds 1.7e+09
"""


def test_a_page_of_vllm():
    assert read_page(PAGE) == {
        "num_running": 5.0,
        "num_waiting": 7.0,
        "kv_usage_ratio": 0.5,
        "input_tokens_total": 1e6,
        "ended_total": 11.0,
        "ttft_seconds_total": 12.5,
        "first_tokens_total": 11.0,
        "process_start_time_seconds": 1.7e9,
    }


def test_pages_of_others_and_values_that_are_none():
    assert read_page("sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n") == {
        "num_running": 2.0,
        "num_waiting": 1.0,
        "kv_usage_ratio": 0.5,
    }
    for value in ("NaN", "+Inf", "-1"):
        assert "num_running" not in read_page(
            f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 1\n"
        )
    with pytest.raises(ValueError, match="cut off"):
        read_page("vllm:num_requests_running 3")
    with pytest.raises(ValueError, match="no metric"):
        read_page('vllm:num_requests_running{a="b\n')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "replicas must be an object"),
        ({"replicas": {"a": 3}}, "replicas.a must be an object, got int"),
        ({"replicas": {"a": {"num_running": "3"}}}, "replicas.a.num_running must be a finite number"),
        ({"replicas": {"a": {"num_running": -1}}}, "replicas.a.num_running must be a finite number"),
        ({"replicas": {"a": {"num_running": math.inf}}}, "replicas.a.num_running must be a finite number"),
        ({"replicas": {"a": {"running": 1}}}, "replicas.a.running is unknown"),
        ({"replicas": {"a": {"ready": 1}}}, "replicas.a.ready must be true or false"),
        ({"replicas": {}, "wanted": 1.5}, "wanted must be a whole number"),
        ({"replicas": {}, "desired": 1}, "'desired' is unknown"),
    ],
)
def test_readings_that_are_none(body, said):
    with pytest.raises(ValueError, match=said):
        posted(body)


@pytest.mark.parametrize(
    "body", [{}, [], {"num_held": None}, {"num_held": -1}, {"replicas": {}, "num_held": 1}]
)
def test_what_is_held_alone_is_posted_where_replicas_are_read(body):
    assert posted_held({"num_held": 3}) == 3
    with pytest.raises(ValueError, match="num_held"):
        posted_held(body)


def test_posted_readings():
    body = {
        "replicas": {"a": {"num_running": 3, "kv_usage_ratio": None}, "b": {"ready": False}},
        "num_held": 2,
    }
    assert posted(body) == (
        {"a": {"num_running": 3.0}, "b": {}},
        {"a": Found("a", name="a"), "b": Found("b", False, name="b")},
        2,
        None,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"min_replicas": 4, "max_replicas": 2}, "scaling.min_replicas"),
        ({"scrape_interval_s": 0.0}, "scaling.scrape_interval_s must be positive"),
        ({"target": "llama"}, "scaling.target must be NAMESPACE/NAME"),
        ({"target": "a/pods/llama"}, "kind of scaling.target"),
        ({"read_scale": True}, "scaling.read_scale needs scaling.target"),
        ({"without": ("gauge",)}, "scaling.without"),
        ({"tls_key": "key.pem"}, "must be given together"),
        ({"tls_client_ca": "ca.pem"}, "scaling.tls_client_ca needs"),
    ],
)
def test_settings_that_are_impossible(words, said):
    with pytest.raises(ValueError, match=said):
        ScalingSettings(**words)


def test_bounds_that_the_cluster_has_no_places_for():
    with pytest.raises(ValueError, match=r"scaling.max_replicas \(99\) is more than the cluster has places"):
        made(*HPA, max_replicas=99)
    with pytest.raises(ValueError, match="is beyond loopback"):
        made(*HPA, replicas=("http://10.0.0.1:8000",))
