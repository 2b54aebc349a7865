"""SageServe's scaling: reactive, LT-I, LT-U, LT-UA, and spot instances."""

import numpy as np
import pytest

from serving_gym.baselines.sageserve.autoscaler import SageServePolicy
from serving_gym.baselines.sageserve.autoscaling_config import ReactiveConfig, SageServeScalingConfig
from serving_gym.baselines.sageserve.deferral import by_utilization, by_utilization_and_gap, immediate
from serving_gym.baselines.sageserve.demand import buffer_tps, interactive_tps, present_tps
from serving_gym.baselines.sageserve.reactive import ReactivePolicy
from serving_gym.baselines.sageserve.spot import Stock, bring_in, give_away
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.scaling import Endpoint, Operation, Pool
from tests.baselines.autoscalers.states import HERE, at, endpoint, instances, net, spec, state, traffic

CONFIG = SageServeScalingConfig()
OTHER = Endpoint("bloom", "east")


def test_thresholds_of_lt_u():
    assert immediate(4, 7) == 3
    cases = {
        (4, 7, 0.71): 1,
        (4, 7, 0.70): 0,
        (7, 7, 0.9): 0,
        (4, 2, 0.29): -1,
        (4, 2, 0.30): 0,
        (2, 2, 0.1): 0,
    }
    assert {case: by_utilization(*case, CONFIG) for case in cases} == cases
    assert by_utilization(4, 7, 0.1, CONFIG) == 0  # low, but the plan is higher


def test_lt_ua_goes_beyond_the_plan_in_the_last_twenty_minutes_alone():
    def change(present, observed, left_s, utilization=0.5):
        return by_utilization_and_gap(present, 4, utilization, observed, 100.0, left_s, CONFIG)

    assert change(4, 500, 1200) == 1
    assert change(4, 499, 1200) == 0
    assert change(4, 500, 1201) == 0
    assert change(4, 50, 600) == -1
    assert change(4, 51, 600) == 0
    assert change(6, 600, 600) == 1  # above the plan already
    assert change(3, 600, 600) == 0  # the plan is not reached, and utilisation does not ask for it
    assert change(3, 600, 600, utilization=0.8) == 1
    assert change(2, 10, 600) == -1
    assert change(5, 10, 600) == 0
    assert (
        by_utilization_and_gap(4, 4, 0.5, 0.0, 0.0, 60.0, CONFIG) == -1
    )  # nothing comes, nothing was expected


def test_demand_by_hand():
    past = traffic(
        300.0, input_tokens=np.full(24, 900.0), niw_input_tokens=np.r_[np.zeros(12), np.full(12, 600.0)]
    )
    own = endpoint(2, history=past)
    np.testing.assert_allclose(interactive_tps(own, 900.0), np.full(8, 3.0))
    assert buffer_tps(own, 0.1) == pytest.approx(0.1 * 12 * 600 / 3600)
    assert buffer_tps(endpoint(2), 0.1) == 0
    assert present_tps(own, 600.0) == pytest.approx(3.0)
    quick = endpoint(2, history=past, recent=traffic(10.0, input_tokens=[10.0, 50.0, 70.0]))
    assert present_tps(quick, 20.0) == pytest.approx(6.0)
    assert present_tps(endpoint(2), 60.0) == 0


def test_instances_come_from_the_fastest_source():
    one, two = endpoint(2, spot=np.array([1])), endpoint(2, endpoint=OTHER, spot=np.array([2]))
    setting = spec((HERE, OTHER))
    stock = Stock.of(state(one, two, vacant={"east": np.array([1])}))
    changes = list(bring_in(setting, stock, HERE, 6))
    assert [(change.operation, change.count) for change in changes] == [
        (Operation.RECLAIM, 1),
        (Operation.REDEPLOY, 2),
        (Operation.START, 1),
    ]
    assert changes[1].donor == "bloom"
    assert not list(bring_in(setting, stock, OTHER, 1))  # nothing is left, nor is anything given twice
    assert one.spot[0] == 1


def test_instances_that_run_are_donated_least_busy_first():
    rows = [{"num_running": 3}, {"num_running": 1}, {"status": InstanceStatus.STARTING}]
    (change,) = give_away(endpoint(rows), 5)
    assert (change.operation, change.places) == (Operation.DONATE, (1, 0))
    assert not list(give_away(endpoint(0), 1))


def reactive(**values) -> ReactivePolicy:
    policy = ReactivePolicy(ReactiveConfig(**values))
    policy.reset(spec(min_instances=2, max_instances=4), 0)
    return policy


def test_reactive_thresholds_and_cooldown():
    policy = reactive()
    assert net(policy.act(None, state(endpoint(at(0.71))))) == 1
    assert net(policy.act(None, state(endpoint(at(0.71)), now_s=14.9))) == 0
    assert net(policy.act(None, state(endpoint(at(0.71)), now_s=15.0))) == 1
    assert net(policy.act(None, state(endpoint(at(0.70)), now_s=100.0))) == 0
    assert net(policy.act(None, state(endpoint(at(0.29, 3)), now_s=200.0))) == -1
    assert net(policy.act(None, state(endpoint(at(0.29, 2)), now_s=300.0))) == 0  # the fewest
    assert net(policy.act(None, state(endpoint(at(0.9, 4)), now_s=400.0))) == 0  # the most
    assert net(policy.act(None, state(endpoint(0), now_s=500.0))) == 2  # as many as there must be
    waiting = instances([{"status": InstanceStatus.STARTING}] * 2)
    assert net(policy.act(None, state(endpoint(waiting), now_s=600.0))) == 0  # nothing to react to yet


def test_silos_are_scaled_by_themselves():
    rows = [{"pool": Pool.INTERACTIVE, "kv_used_tokens": 900}] * 2 + [
        {"pool": Pool.BATCH, "kv_used_tokens": 100}
    ] * 3
    changes = reactive(siloed=True).act(None, state(endpoint(rows)))
    assert [(change.pool, change.operation) for change in changes if change.signed > 0] == [
        (Pool.INTERACTIVE, Operation.START)
    ]
    (back,) = [change for change in changes if change.signed < 0]
    assert back.places == (2,)  # of the batch pool
    assert net(reactive().act(None, state(endpoint(rows)))) == 0  # the unified pool is at 42 %


def steady(tps: float, hours: int = 24, **values):
    """An endpoint whose past had this rate."""
    past = traffic(300.0, end_s=0.0, input_tokens=np.full(hours * 12, tps * 300.0))
    return endpoint(values.pop("rows", 2), history=past, **values)


def planner(strategy: str, **values) -> SageServePolicy:
    policy = SageServePolicy(SageServeScalingConfig(strategy=strategy, forecaster="last_value", **values))
    policy.reset(spec(min_instances=1), 0)
    return policy


def test_lt_i_carries_the_plan_out_when_the_hour_begins():
    """450 tokens/s at 100 an instance: five."""
    policy = planner("LT-I")
    assert net(policy.act(None, state(steady(450.0)))) == 3
    assert net(policy.act(None, state(steady(450.0), now_s=600.0))) == 0
    assert net(policy.act(None, state(steady(150.0, rows=5), now_s=3600.0))) == -3
    assert policy.plan is not None
    assert policy.plan.planned[HERE].tolist() == [2]


def test_the_buffer_is_part_of_the_plan():
    past = traffic(300.0, input_tokens=np.full(288, 390.0 * 300), niw_input_tokens=np.full(288, 200.0 * 300))
    policy = planner("LT-I")
    assert net(policy.act(None, state(endpoint(4, history=past)))) == 1  # 390 + 0.1 * 200 = 410


def test_lt_u_waits_for_utilisation():
    policy = planner("LT-U")
    assert net(policy.act(None, state(steady(450.0, rows=at(0.5))))) == 0
    assert net(policy.act(None, state(steady(450.0, rows=at(0.8)), now_s=60.0))) == 1
    assert net(policy.act(None, state(steady(450.0, rows=at(0.8, 3)), now_s=70.0))) == 0  # cooldown
    assert (
        net(policy.act(None, state(steady(450.0, rows=at(0.8, 5)), now_s=120.0))) == 0
    )  # the plan is reached
    assert net(policy.act(None, state(steady(450.0, rows=at(0.2, 6)), now_s=180.0))) == -1


def test_immediate_scale_in_goes_down_to_the_plan_at_once_and_out_by_utilisation():
    policy = planner("LT-U", scale_in="immediate")
    assert net(policy.act(None, state(steady(150.0, rows=at(0.5, 5))))) == -3
    assert net(policy.act(None, state(steady(450.0, rows=at(0.5)), now_s=3600.0))) == 0
    assert net(policy.act(None, state(steady(450.0, rows=at(0.8)), now_s=3660.0))) == 1


def test_the_oracle_plans_by_the_traffic_to_come():
    policy = SageServePolicy(SageServeScalingConfig(strategy="LT-I", forecaster="oracle"))
    policy.reset(spec(min_instances=1), 0)
    assert policy.clairvoyant
    coming = traffic(300.0, end_s=3600.0, input_tokens=np.full(6, 450.0 * 300))
    changes = policy.act(None, state(steady(150.0), coming=(coming,)))
    assert net(changes) == 3
    assert policy.plan is not None
    assert policy.plan.predicted_tps[HERE].tolist() == [450.0, 450.0, 0.0, 0.0]


def test_lt_ua_follows_a_burst():
    policy = planner("LT-UA")
    assert net(policy.act(None, state(steady(200.0, rows=at(0.5))))) == 0
    burst = traffic(10.0, input_tokens=np.full(6, 8 * 200.0 * 10))
    late = state(steady(200.0, rows=at(0.9), recent=burst), now_s=2500.0)
    assert net(policy.act(None, late)) == 1
    early = planner("LT-UA")
    early.act(None, state(steady(200.0, rows=at(0.5))))
    assert net(early.act(None, state(steady(200.0, rows=at(0.9), recent=burst), now_s=1800.0))) == 0


def test_without_a_past_the_last_hour_stands_for_the_next():
    policy = planner("LT-I")
    assert net(policy.act(None, state(endpoint(2)))) == -1
    few = traffic(300.0, input_tokens=np.full(12, 350.0 * 300))
    again = SageServePolicy(SageServeScalingConfig(strategy="LT-I"))  # ARIMA wants more than four windows
    again.reset(spec(), 0)
    assert net(again.act(None, state(endpoint(2, history=few)))) == 2


def test_machines_bound_the_plan():
    policy = planner("LT-I")
    policy.act(None, state(steady(900.0), vacant={"east": np.array([3])}))
    assert policy.plan is not None
    assert policy.plan.planned[HERE].tolist() == [5]


def test_the_forecaster_is_arima_and_is_fitted_once_a_day():
    rng = np.random.default_rng(0)
    past = traffic(300.0, input_tokens=300.0 * (300 + 10 * rng.normal(size=288)))
    policy = SageServePolicy(SageServeScalingConfig(strategy="LT-I"))
    policy.reset(spec(), 0)
    assert net(policy.act(None, state(endpoint(2, history=past)))) in (1, 2)
    fitted = dict(policy._fitted_s)
    policy.act(None, state(endpoint(4, history=past), now_s=3600.0))
    assert policy._fitted_s == fitted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategy": "LT"}, "unknown strategy"),
        ({"scale_in": "imediate"}, "did you mean 'immediate'"),
        ({"forecaster": "arma"}, "did you mean 'arima'"),
        ({"epsilon": 0}, "epsilon"),
        ({"in_below_ratio": 0.9}, "in_below_ratio"),
        ({"window_s": 0}, "window_s"),
        ({"beta": -1}, "beta"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        SageServeScalingConfig(**values)
    with pytest.raises(ValueError, match="cooldown_s"):
        ReactiveConfig(cooldown_s=-1)
