"""Autoscalers that a practitioner would pick."""

import numpy as np
import pytest

from serving_gym.baselines.common.autoscalers.clairvoyant import (
    ClairvoyantScalingConfig,
    ClairvoyantScalingPolicy,
)
from serving_gym.baselines.common.autoscalers.cron import CronConfig, CronPolicy, CronWindow
from serving_gym.baselines.common.autoscalers.fixed import FixedInstancesConfig, FixedInstancesPolicy
from serving_gym.baselines.common.autoscalers.horizontal import (
    Behavior,
    HorizontalConfig,
    HorizontalPolicy,
    replicas_for_external,
    replicas_for_pods,
)
from serving_gym.baselines.common.autoscalers.load_planner import LoadPlannerConfig, LoadPlannerPolicy
from serving_gym.baselines.common.autoscalers.panic_window import (
    Panic,
    PanicWindowConfig,
    PanicWindowPolicy,
    replicas,
)
from serving_gym.baselines.common.autoscalers.queue_proportional import (
    QueueProportionalConfig,
    QueueProportionalPolicy,
)
from serving_gym.baselines.common.autoscalers.saturation import SaturationConfig, SaturationPolicy, analyse
from serving_gym.baselines.common.autoscalers.throughput_planner import (
    EngineProfile,
    Load,
    ThroughputPlannerConfig,
    ThroughputPlannerPolicy,
    corrections,
    mixed_engines,
    profile_of,
)
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.scaling import Operation
from tests.baselines.autoscalers.states import at, endpoint, instances, net, spec, state, traffic

DAY = 86_400.0


def ready(policy, **values):
    policy.reset(spec(**values), 0)
    return policy


def test_queue_proportional():
    policy = ready(QueueProportionalPolicy(QueueProportionalConfig(10.0)))
    rows = [{"num_running": 12, "num_waiting": 3}, {"num_running": 10, "status": InstanceStatus.DRAINING}]
    assert net(policy.act(None, state(endpoint(rows, num_held=6)))) == 3  # 31 over 10, one is there
    assert net(policy.act(None, state(endpoint(3)))) == -2
    with pytest.raises(ValueError, match="requests_per_instance"):
        QueueProportionalConfig(0.0)


def test_dynamo_load_planner():
    policy = ready(LoadPlannerPolicy())
    assert policy.period_s == 5.0

    def use(*pairs, **others):
        rows = [{"kv_used_tokens": kv, "waiting_tokens": w, "kv_capacity_tokens": 1000} for kv, w in pairs]
        return net(policy.act(None, state(endpoint([*rows, *others.get("more", ())]))))

    assert use((900, 200), (100, 0)) == 1  # one engine has more to hold than it can
    assert use((590, 0), (100, 0)) == -1  # all are below 60 %
    assert use((610, 0), (100, 0)) == 0
    assert use((900, 200), more=[{"status": InstanceStatus.STARTING}]) == 0  # scaling is under way
    latency = ready(LoadPlannerPolicy(LoadPlannerConfig(0.4, 0.1)))
    rows = [{"kv_used_tokens": 450, "kv_capacity_tokens": 1000}]
    assert net(latency.act(None, state(endpoint(rows)))) == 1
    with pytest.raises(ValueError, match="scale_up"):
        LoadPlannerConfig(scale_up=0.0)


def test_the_hpa_formula_by_hand():
    """50 pods at 90 % with a target of 75 %: 60 (the Kubernetes documentation's example)."""
    assert replicas_for_pods(np.full(50, 90.0), 0, 75.0, 0.1) == 60
    assert replicas_for_pods(np.full(10, 0.87), 0, 0.8, 0.1) == 10  # within the tolerance
    assert replicas_for_pods(np.full(10, 0.4), 0, 0.8, 0.1) == 5
    assert replicas_for_external(26.0, 5.0, 5, 0.1) == 5
    assert replicas_for_external(28.0, 5.0, 5, 0.1) == 6
    assert replicas_for_external(0.0, 5.0, 5, 0.1) == 0


def test_the_hpa_is_careful_about_pods_that_do_not_report():
    """Two at 1.5 and one that reports nothing, counted as 0: 3.0 / 3 = 1, no change. Two at 2 make 4/3."""
    assert replicas_for_pods(np.full(2, 1.5), 1, 1.0, 0.1) == 3
    assert replicas_for_pods(np.full(2, 2.0), 1, 1.0, 0.1) == 4
    assert replicas_for_pods(np.full(2, 1.2), 1, 1.0, 0.1) == 3  # 0.8: turned round
    assert replicas_for_pods(np.full(2, 0.2), 2, 1.0, 0.1) == 3  # (0.4 + 2) / 4 = 0.6
    assert replicas_for_pods(np.full(2, 0.95), 2, 1.0, 0.1) == 4


def test_scaling_in_waits_for_the_stabilisation_window():
    behavior = Behavior(HorizontalConfig())
    assert behavior.apply(0.0, 8, 8) == 8
    assert behavior.apply(15.0, 8, 3) == 8
    assert behavior.apply(299.0, 8, 2) == 8
    assert behavior.apply(300.0, 8, 2) == 3  # the 8 has left the window; 3 is the largest in it
    assert behavior.apply(615.0, 3, 2) == 2


def test_scaling_out_has_its_own_window():
    behavior = Behavior(HorizontalConfig(out_stabilization_s=60.0))
    assert behavior.apply(0.0, 2, 2) == 2
    assert behavior.apply(30.0, 2, 6) == 2
    assert behavior.apply(61.0, 2, 5) == 5


def test_policies_limit_each_period():
    behavior = Behavior(HorizontalConfig())
    assert behavior.apply(0.0, 2, 100) == 6  # four pods are more than 100 %
    assert behavior.apply(10.0, 6, 100) == 6  # the period began with 2
    assert behavior.apply(15.0, 6, 100) == 12
    slow = Behavior(HorizontalConfig(in_stabilization_s=0.0, in_percent=10.0, in_period_s=60.0))
    assert slow.apply(0.0, 20, 1) == 18
    assert slow.apply(30.0, 18, 1) == 18
    assert slow.apply(60.0, 18, 1) == 16


def test_hpa_on_waiting_and_on_kv():
    policy = ready(HorizontalPolicy())
    rows = [{"num_waiting": 6}, {"num_waiting": 5}]
    assert net(policy.act(None, state(endpoint(rows, num_held=6)))) == 2  # 17 over 5
    assert net(policy.act(None, state(endpoint(rows, num_held=60), now_s=14.0))) == 0  # between two syncs
    on_kv = ready(HorizontalPolicy(HorizontalConfig(metric="kv", target=0.5)))
    assert net(on_kv.act(None, state(endpoint(at(0.9))))) == 2  # 2 x 1.8
    waiting = [{"status": InstanceStatus.STARTING}] * 2
    assert net(on_kv.act(None, state(endpoint(waiting), now_s=15.0))) == 0


def test_hpa_on_the_rate_of_prompts():
    """An instance serves 100 tokens/s; 27 and 3 a second came in the last 10 s: 30 over 0.1 x 100 make 3."""
    policy = ready(HorizontalPolicy(HorizontalConfig(metric="rate", target=0.1, rate_window_s=10.0)))
    recent = traffic(5.0, 15.0, input_tokens=[0, 70, 200], niw_input_tokens=[0, 30, 0])
    assert net(policy.act(None, state(endpoint(1)))) == 0  # nothing was counted yet
    assert net(policy.act(None, state(endpoint(1, recent=recent), now_s=15.0))) == 2


@pytest.mark.parametrize(
    "values", [{"metric": "cpu"}, {"target": 0.0}, {"sync_s": 0.0}, {"tolerance": -0.1}, {"out_pods": -1}]
)
def test_hpa_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        HorizontalConfig(**values)


KPA = PanicWindowConfig(concurrency=10.0, utilization=0.7)  # 7 requests an instance


def test_kpa_by_hand():
    """The documentation's example: 100 inside at 10 x 0.7 are 15."""
    assert replicas(0.0, 10, 100.0, 100.0, Panic(), KPA) == 15
    assert replicas(0.0, 10, 7.0, 7.0, Panic(), KPA) == 5  # not below half of what is ready
    assert replicas(0.0, 1, 0.0, 0.0, Panic(), KPA) == 0


def test_panic_only_grows_and_ends_after_a_stable_window():
    panic = Panic()
    assert replicas(0.0, 2, 14.0, 27.9, panic, KPA) == 4  # 4 are wanted at once: twice what is ready
    assert panic.since_s == 0.0
    assert replicas(10.0, 4, 10.0, 10.0, panic, KPA) == 4  # no less
    assert replicas(20.0, 4, 20.0, 49.0, panic, KPA) == 7  # more, though 7 is less than twice 4
    assert panic.since_s == 0.0
    assert replicas(40.0, 3, 20.0, 42.0, panic, KPA) == 7
    assert panic.since_s == 40.0  # 6 were wanted of 3
    assert replicas(100.0, 7, 20.0, 20.0, panic, KPA) == 7
    assert replicas(100.1, 7, 20.0, 20.0, panic, KPA) == 3
    assert panic == Panic()


def test_kpa_averages_both_windows():
    policy = ready(PanicWindowPolicy(KPA))
    recent = traffic(2.0, mean_concurrency=np.r_[np.zeros(27), np.full(3, 30.0)])
    assert net(policy.act(None, state(endpoint(2, recent=recent)))) == 3  # 30 in 6 s: 5; 3 in 60 s: 1
    assert net(ready(PanicWindowPolicy()).act(None, state(endpoint(2)))) == 0


@pytest.mark.parametrize(
    "values", [{"concurrency": 0}, {"utilization": 2}, {"panic_s": 61.0}, {"panic_threshold": 1.0}]
)
def test_kpa_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        PanicWindowConfig(**values)


def test_times_of_a_timetable():
    work = CronWindow(8.0, 20.0, 6)
    assert work.holds(8 * 3600.0)
    assert not work.holds(20 * 3600.0)
    assert not work.holds(5 * DAY + 9 * 3600.0)  # Saturday
    night = CronWindow(22.0, 6.0, 3, days=(4,))
    assert night.holds(4 * DAY + 23 * 3600.0)
    assert night.holds(5 * DAY + 5 * 3600.0)
    assert not night.holds(4 * DAY + 5 * 3600.0)


def test_the_timetable_is_followed():
    policy = ready(CronPolicy(CronConfig(windows=(CronWindow(8.0, 20.0, 4),))))

    def act(clock_s, count):
        return net(policy.act(None, state(endpoint(count), now_s=clock_s, clock_s=clock_s)))

    assert act(7 * 3600.0, 1) == 0
    assert act(8 * 3600.0, 1) == 3
    assert act(19.99 * 3600.0, 4) == 0
    assert act(20 * 3600.0, 4) == 0  # the stabilisation window
    assert act(20 * 3600.0 + 300, 4) == -3


def test_a_queue_can_ask_for_more_than_the_timetable():
    config = CronConfig(windows=(CronWindow(0.0, 24.0, 2),), waiting_target=5.0)
    policy = ready(CronPolicy(config))
    assert net(policy.act(None, state(endpoint(2, num_held=30)))) == 4
    assert net(policy.act(None, state(endpoint(6), now_s=29.0, clock_s=29.0))) == 0  # between two polls


def test_timetable_mistakes_are_named():
    for values, name in (
        ({"start_h": 25.0}, "start_h"),
        ({"instances": -1}, "instances"),
        ({"days": (7,)}, "days"),
    ):
        with pytest.raises(ValueError, match=name):
            CronWindow(**{"start_h": 1.0, "end_h": 2.0, "instances": 1, **values})
    for values in ({"waiting_target": 0.0}, {"poll_s": 0.0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            CronConfig(**values)


def replica(kv: float, queue: int, **values) -> dict:
    return {"kv_used_tokens": round(1000 * kv), "num_waiting": queue, **values}


def test_saturation_by_hand():
    """Spare KV 0.10 and spare queue 3 on average are just enough; a hair less of either is not."""
    config = SaturationConfig()

    def found(*rows):
        return analyse(instances([replica(*row) for row in rows]), config)

    assert not found((0.7, 2), (0.7, 2)).grow
    assert found((0.71, 2), (0.7, 2)).grow
    assert found((0.5, 3), (0.5, 2)).grow
    assert not found((0.9, 0), (0.5, 0)).grow  # the saturated one is left out
    assert found((0.8, 0), (0.1, 5)).grow  # none is free
    assert found((0.35, 1), (0.35, 1)).may_shrink
    assert not found((0.36, 1), (0.35, 1)).may_shrink  # 0.71 on the one that is left
    assert not found((0.1, 2), (0.1, 1)).may_shrink  # a queue of 3 on the one that is left
    assert not found((0.1, 0)).may_shrink
    assert analyse(instances(0), config) == type(found((0.1, 0)))(False, False)


def test_the_cheapest_variant_grows_and_the_dearest_shrinks():
    two = {"gpus": ("A100", "H100"), "gpu_usd_per_h": np.array([20.0, 15.0])}
    policy = ready(SaturationPolicy(), **two)
    busy = [replica(0.75, 0, gpu=0), replica(0.75, 0, gpu=1)]
    (out,) = policy.act(None, state(endpoint(busy)))
    assert (out.operation, out.count, out.gpu) == (Operation.START, 1, 1)
    policy = ready(SaturationPolicy(), **two)
    coming = [*busy, {"gpu": 1, "status": InstanceStatus.STARTING}]
    (other,) = policy.act(None, state(endpoint(coming)))
    assert other.gpu == 0  # the cheaper one is still on its way
    policy = ready(SaturationPolicy(), **two)
    (back,) = policy.act(None, state(endpoint([replica(0.1, 0, gpu=1), replica(0.1, 0, gpu=0)])))
    assert (back.operation, back.places) == (Operation.STOP, (1,))


def test_a_number_that_was_told_is_awaited():
    policy = ready(SaturationPolicy())
    busy = endpoint([replica(0.75, 0), replica(0.75, 0)])
    assert net(policy.act(None, state(busy))) == 1
    assert net(policy.act(None, state(busy, now_s=60.0))) == 1  # told 3, has 2 still: not 4
    three = endpoint([replica(0.75, 0)] * 3)
    assert net(policy.act(None, state(three, now_s=120.0))) == 1
    assert net(policy.act(None, state(endpoint(0), now_s=180.0))) == 1


@pytest.mark.parametrize("values", [{"kv_threshold": 0}, {"kv_spare": 0.9}, {"queue_spare": 5.0}])
def test_saturation_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        SaturationConfig(**values)


def engine() -> EngineProfile:
    """1,000 prompt tokens/s; 10 to 50 ms at 100 to 500 answer tokens/s, half as many at ten times the context."""
    return EngineProfile(
        np.array([100.0, 1000.0]),
        np.array([0.1, 1.0]),
        np.array([1000.0, 1000.0]),
        np.array([100.0, 1000.0]),
        np.array([[0.01, 0.05], [0.01, 0.05]]),
        np.array([[100.0, 500.0], [50.0, 250.0]]),
    )


def test_profiles_are_interpolated():
    own = engine()
    assert own.ttft(550.0) == pytest.approx(0.55)
    assert own.decode(0.03, 100.0) == pytest.approx(300)
    assert own.decode(0.03, 550.0) == pytest.approx(225)
    assert own.decode(1.0, 5000.0) == pytest.approx(250)
    assert own.itl(300.0, 100.0) == pytest.approx(0.03)


def test_dynamos_formulas_by_hand():
    """60 requests of 50 + 100 tokens in 10 s."""
    own, short = engine(), Load(60.0, 50.0, 100.0)  # a mean context of 100
    assert mixed_engines(own, short, 10.0, 0.05, (1.0, 1.0)) == 2  # 6/s x (0.05 + 0.2 s)
    assert mixed_engines(own, Load(81.0, 50.0, 100.0), 10.0, 0.05, (1.0, 1.0)) == 3
    prefill, decode = corrections(own, short, 10.0, 0.2, 0.06, 2)
    assert (prefill, decode) == (pytest.approx(2.0), pytest.approx(2.0))
    assert corrections(own, short, 10.0, float("nan"), float("nan"), 2) == (1.0, 1.0)


def test_a_profile_of_calibrated_engines_by_hand():
    """1 ms a prompt token; an iteration of b requests takes 10 + b ms and 1 us a token of context; room for 4096."""
    engines = NominalEngines(
        models=("other", "llama"),
        regions=("east", "east"),
        gpus=("H100", "H100"),
        num_gpus=np.ones(2, int),
        block_size=np.full(2, 16),
        kv_capacity_tokens=np.array([1, 4096]),
        max_num_seqs=np.array([1, 8]),
        max_num_batched_tokens=np.full(2, 2048),
        prefill_s_per_token=np.array([1.0, 1e-3]),
        decode_s=np.array([np.ones(9), 0.01 + 1e-3 * np.arange(9)]),
        kv_s_per_token=np.array([1.0, 1e-6]),
    )
    own = profile_of(engines, "llama")
    assert own.ttft(1024.0) == pytest.approx(1.024)
    assert own.prefill(1024.0) == pytest.approx(1000.0)
    assert own.itl_s[own.context_tokens == 1024.0][0, :4] == pytest.approx(
        [0.011 + 0.001024, 0.012 + 0.002048, 0.013 + 0.003072, 0.014 + 0.004096]
    )
    assert own.decode(1.0, 1024.0) == pytest.approx(4 / (0.014 + 0.004096))  # a fifth would not fit
    assert own.decode(1.0, 32.0) == pytest.approx(8 / (0.018 + 8 * 32e-6))


def test_a_fixed_number_stays():
    policy = ready(FixedInstancesPolicy())
    assert net(policy.act(None, state(endpoint(3)))) == 0
    assert net(policy.act(None, state(endpoint(1)))) == 2
    assert net(ready(FixedInstancesPolicy(FixedInstancesConfig(5))).act(None, state(endpoint(3)))) == 2
    with pytest.raises(ValueError, match="instances must not be negative"):
        FixedInstancesConfig(-1)


def test_a_clairvoyant_is_ready_in_time():
    """100 tokens/s each at 70 %: 140/s need 2; a start takes 600 s, decisions come every 60 s, bins are 60 s long."""
    rates = np.array([140.0] * 11 + [420.0] * 5 + [60.0] * 40)
    policy = ready(ClairvoyantScalingPolicy(ClairvoyantScalingConfig(niw_ratio=0.0)))

    def change(present, first):
        coming = traffic(60.0, end_s=60.0 * len(rates), input_tokens=60 * rates[first:])
        return net(policy.act(None, state(endpoint(present), coming=(coming,))))

    assert change(2, 0) == 0  # the peak begins in 660 s
    assert change(2, 1) == 4  # one that starts at the next decision would be late
    assert change(6, 15) == 0
    assert change(6, 16) == -5
    niw = ready(ClairvoyantScalingPolicy())
    coming = traffic(60.0, input_tokens=np.full(20, 60 * 60.0), niw_input_tokens=np.arange(20) * 60.0)
    assert net(niw.act(None, state(endpoint(1), coming=(coming,)))) == 0  # 60 + 9.5 over 70
    with pytest.raises(ValueError, match="shows the load to come"):
        niw.act(None, state(endpoint(1)))
    with pytest.raises(ValueError, match="load_ratio"):
        ClairvoyantScalingConfig(load_ratio=0.0)


def planned(policy, requests: float, now_s: float = 0.0, **columns) -> int:
    past = traffic(
        60.0,
        requests=np.full(6, requests),
        input_tokens=np.full(6, 50 * requests),
        output_tokens=np.full(6, 100 * requests),
        **columns,
    )
    return net(policy.act(None, state(endpoint(2, history=past), now_s=now_s)))


def test_the_planner_plans_every_interval():
    policy = ready(ThroughputPlannerPolicy(ThroughputPlannerConfig("last_value"), {"llama": engine()}))
    assert planned(policy, 960.0) == 2  # 16/s x 0.25 s
    assert planned(policy, 2000.0, now_s=100.0) == 0
    assert planned(policy, 1260.0, now_s=180.0) == 4  # 21/s x 0.25 s
    slow = {"finished": np.full(6, 10.0), "tpot_sum_s": np.full(6, 10 * 0.5)}
    assert planned(policy, 960.0, now_s=360.0, **slow) > 2  # ten times slower than the profile says
    quiet = ready(ThroughputPlannerPolicy(profiles={"llama": engine()}))
    assert net(quiet.act(None, state(endpoint(2)))) == 0


def test_the_planner_forecasts():
    config = ThroughputPlannerConfig("seasonal_naive", interval_s=43_200.0, correct=False, fewest_points=4)
    policy = ready(ThroughputPlannerPolicy(config, {"llama": engine()}))
    counts = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0]) * 43_200 * 8  # the next half day is one of 8/s
    past = traffic(43_200.0, requests=counts, input_tokens=50 * counts, output_tokens=100 * counts)
    assert net(policy.act(None, state(endpoint(4, history=past)))) == -2


def test_planner_mistakes_are_named():
    with pytest.raises(ValueError, match="profiles lacks llama"):
        ready(ThroughputPlannerPolicy())
    with pytest.raises(ValueError, match="unknown forecaster"):
        ThroughputPlannerConfig("oracle")
    with pytest.raises(ValueError, match="interval_s"):
        ThroughputPlannerConfig(interval_s=0.0)
    own = vars(engine())
    for name, value, message in (
        ("ttft_s", np.ones(3), "equally long"),
        ("itl_s", np.ones((1, 2)), "row for each"),
        ("context_tokens", np.array([2.0, 1.0]), "must grow"),
        ("decode_tps", np.array([[2.0, 1.0], [2.0, 1.0]]), "must not fall"),
    ):
        with pytest.raises(ValueError, match=message):
            EngineProfile(**{**own, name: value})
