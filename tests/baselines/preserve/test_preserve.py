"""PreServe's workload predictor, its scaler, and what it is compared with."""

import math

import numpy as np
import pytest
import torch

from serving_gym.baselines.common.forecasting.series import percentage_errors, rolling
from serving_gym.baselines.common.forecasting.simple import LastValue
from serving_gym.baselines.preserve.capability import Capability, profile
from serving_gym.baselines.preserve.comparators import (
    ComparatorConfig,
    PreServeHybridPolicy,
    PreServeProactivePolicy,
    PreServeReactivePolicy,
)
from serving_gym.baselines.preserve.instance_scaler import (
    PreServeScalingConfig,
    PreServeScalingPolicy,
    anticipate,
    instances_to_isolate,
)
from serving_gym.baselines.preserve.mlstm import Mlstm, MlstmCell, MlstmConfig
from serving_gym.baselines.preserve.pass_scaler import (
    Ensemble,
    PassConfig,
    PassPolicy,
    borne_rps,
    erlang_c,
    servers_for,
)
from serving_gym.baselines.preserve.workload_predictor import WorkloadPredictor, WorkloadPredictorConfig
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.scaling import Operation
from tests.baselines.autoscalers.states import at, endpoint, instances, net, spec, state, traffic
from tests.baselines.preserve.states import in_flight, row

SMALL = MlstmConfig(history=8, hidden=8, epochs=40, learning_rate=2e-2)


def test_the_cell_by_hand():
    """Weights of one, no bias: m = x h = 0.5 * 0.4 = 0.2, every gate sees 0.5 + 0.2."""
    cell = MlstmCell(1, 1)
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        hidden, memory = cell(torch.tensor([[0.5]]), torch.tensor([[0.4]]), torch.tensor([[0.3]]))
    gate = 1 / (1 + math.exp(-0.7))
    expected = gate * 0.3 + gate * math.tanh(0.7)
    assert float(memory) == pytest.approx(expected)
    assert float(hidden) == pytest.approx(gate * math.tanh(expected))


def wave(points: int = 240) -> np.ndarray:
    return 1000 * (1.2 + np.sin(2 * np.pi * np.arange(points) / 16))


def test_an_mlstm_learns_what_the_last_value_cannot_say():
    series = wave()
    errors = [
        percentage_errors(rolling(forecaster, series, 160, ahead=2), series[160:]).mean
        for forecaster in (Mlstm(SMALL), LastValue())
    ]
    assert errors[0] < 0.4 * errors[1]


def test_further_ahead_it_looks_by_its_own_forecasts():
    mlstm = Mlstm(SMALL)
    mlstm.fit(wave())
    past = wave(50)
    two = mlstm.forecast(past, 2)
    assert two[1] == pytest.approx(mlstm.forecast(np.append(past, two[0]), 1)[0], rel=1e-4)
    assert mlstm.forecast(past[:3], 1)[0] == mlstm.forecast(np.r_[np.full(5, past[0]), past[:3]], 1)[0]


def test_a_seed_gives_the_same_network_and_leaves_torch_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    quick = MlstmConfig(history=8, hidden=4, epochs=1)
    first, second, other = Mlstm(quick, 1), Mlstm(quick, 1), Mlstm(quick, 2)
    for mlstm in (first, second, other):
        mlstm.fit(wave(40))
    assert first.forecast(wave(40), 1) == second.forecast(wave(40), 1) != other.forecast(wave(40), 1)
    assert torch.rand(1) == expected


def test_mlstm_mistakes_are_named():
    with pytest.raises(ValueError, match="hidden must be at least 1"):
        MlstmConfig(hidden=0)
    with pytest.raises(ValueError, match="learning_rate"):
        MlstmConfig(learning_rate=0.0)
    with pytest.raises(ValueError, match="at least 9 values"):
        Mlstm(SMALL).fit(wave(8))
    with pytest.raises(ValueError, match="not fitted"):
        Mlstm(SMALL).forecast(wave(8), 1)


def test_capability_by_hand():
    """Windows of 10 s, the second with a violated promise, the last without an instance: 600 / (2 x 10), 300 / 10."""
    seen = profile([600, 9000, 100, 5], [200, 9000, 300, 5], [0, 1, 0, 0], [2, 1, 1, 0], 10.0)
    assert (seen.mu_p, seen.mu_d, seen.mu_t) == (30, 30, 40)
    later = profile([500], [50], [0], [1], 10.0, seen)
    assert (later.mu_p, later.mu_d, later.mu_t) == (50, 30, 55)
    assert profile([1], [1], [1], [1], 10.0, seen) == seen


def test_instances_by_algorithm_2():
    """Each of the three can be what binds."""
    capability = Capability(10.0, 5.0, 12.0)
    assert capability.instances_for(35.0, 1.0) == 4
    assert capability.instances_for(1.0, 11.0) == 3
    assert capability.instances_for(20.0, 9.0) == 3  # 29 / 12 against 2 and 1.8
    assert Capability().instances_for(5.0, 5.0) == 0


PREDICTOR = WorkloadPredictorConfig(from_benchmark=False, mlstm=MlstmConfig(history=4, hidden=4, epochs=1))


def served(
    prompt_tps: float, response_tps: float, windows: int = 3, count: float = 1.0, violations: float = 0.0
):
    """A past of ten-minute windows in which so many instances served this load."""
    minutes = 10 * windows
    return traffic(
        60.0,
        end_s=600.0 * windows,
        input_tokens=np.full(minutes, 60 * prompt_tps * 0.75),
        niw_input_tokens=np.full(minutes, 60 * prompt_tps * 0.25),
        output_tokens=np.full(minutes, 60 * response_tps),
        requests=np.full(minutes, 60.0),
        violations=np.full(minutes, violations),
        mean_instances=np.full(minutes, count),
    )


def test_the_predictor_counts_all_tokens_and_starts_from_the_last_window():
    predictor = WorkloadPredictor(PREDICTOR)
    first = predictor.predict(endpoint(1, history=served(100.0, 20.0)))
    assert (first.prompt_tps, first.response_tps) == (pytest.approx(100), pytest.approx(20))
    assert first.instances == 1
    assert predictor.predict(endpoint(1, history=served(350.0, 20.0, count=4))).instances == 4
    assert WorkloadPredictor(PREDICTOR).predict(endpoint(1)).instances is None


def test_profiling_starts_at_the_benchmark():
    """At 100 prompt tokens/s and a fifth as many answer tokens: 350 need 4; a window of 400 an instance shows more."""
    predictor = WorkloadPredictor(WorkloadPredictorConfig(), benchmark_tps=100.0)
    past = served(350.0, 70.0, violations=1.0)
    assert predictor.predict(endpoint(1, history=past)).instances == 4
    assert predictor.capability == Capability(100.0, pytest.approx(20.0), pytest.approx(120.0))
    assert predictor.predict(endpoint(1, history=served(400.0, 80.0))).instances == 1
    assert (
        WorkloadPredictor(WorkloadPredictorConfig(), benchmark_tps=100.0).predict(endpoint(1)).instances
        is None
    )


def test_the_predictor_looks_two_windows_ahead_and_trains_daily():
    calls = []

    class Recorder:
        def fit(self, series):
            calls.append(len(series))

        def forecast(self, past, steps):
            return past[-1] * np.array([2.0, 3.0])[:steps]

    predictor = WorkloadPredictor(PREDICTOR, make=Recorder)
    predicted = predictor.predict(endpoint(1, history=served(100.0, 20.0, windows=5)))
    assert predicted.prompt_tps == pytest.approx(300)
    predictor.predict(endpoint(1, history=served(100.0, 20.0, windows=6)))
    assert calls == [5, 5]  # prompts and responses, once
    predictor.predict(endpoint(1, history=served(100.0, 20.0, windows=5 + 144)))
    assert calls == [5, 5, 149, 149]


def anticipating(rows, requests, now_s: float = 60.0):
    own = endpoint(instances(rows))
    return state(own, now_s=now_s, in_flight=in_flight(requests)), own


def test_anticipated_load_by_hand():
    """Of 1,000 tokens each, place 7 holds 910 + i for 60 iterations, 19 of them above 95 %; place 3 holds 200 + i."""
    here, own = anticipating(
        [{"place": 7}, {"place": 3}], [row(7, 900, 70, 10), row(3, 190, 300, 10), row(9, 5, 5, 1)]
    )
    seen = anticipate(here, own, PreServeScalingConfig())
    assert seen.places.tolist() == [7, 3]
    np.testing.assert_allclose(seen.peak_usage, [0.969, 0.299])
    assert seen.overloaded.tolist() == [True, False]
    fewer = anticipate(here, own, PreServeScalingConfig(overload_share=0.19))
    assert fewer.overloaded.tolist() == [False, False]


def test_isolation_by_hand():
    """Peaks of 0.2 and 0.1 over 0.3 need one instance; one at the threshold forbids it."""
    assert instances_to_isolate(4, np.array([0.2, 0.1, 0.0, 0.0]), 0.3) == 3
    assert instances_to_isolate(4, np.array([0.2, 0.15, 0.0, 0.0]), 0.3) == 2
    assert instances_to_isolate(2, np.array([0.3, 0.0]), 0.3) == 0
    assert instances_to_isolate(0, np.zeros(0), 0.3) == 0


def scaler(**values) -> PreServeScalingPolicy:
    policy = PreServeScalingPolicy(PreServeScalingConfig(predictor=PREDICTOR, **values))
    policy.reset(spec(max_instances=8), 0)
    return policy


def test_a_window_begins_with_its_forecast():
    policy = scaler()
    learned = endpoint(1, history=served(100.0, 20.0))
    assert net(policy.act(None, state(learned))) == 0
    more = policy.act(None, state(endpoint(2, history=served(350.0, 20.0, count=4)), now_s=600.0))
    assert net(more) == 2
    (fewer,) = policy.act(None, state(endpoint(6, history=served(100.0, 20.0)), now_s=1200.0))
    assert (fewer.operation, fewer.count) == (Operation.STOP, 5)  # isolated: they finish what they have
    unknown = scaler()
    assert net(unknown.act(None, state(endpoint(3)))) == 0


def test_one_overloaded_one_added_for_as_long_as_it_is():
    policy = scaler()
    heavy, light = row(0, 960, 200, 10), row(1, 500, 200, 10)
    policy.act(None, anticipating(2 * [{}], [heavy, light], now_s=0.0)[0])
    assert net(policy.act(None, anticipating(2 * [{}], [heavy, light])[0])) == 1
    with_new = [{}, {}, {"status": InstanceStatus.STARTING}]
    assert net(policy.act(None, anticipating(with_new, [heavy, light], now_s=70.0)[0])) == 0
    assert net(policy.act(None, anticipating(with_new, [heavy, row(1, 960, 200, 10)], now_s=80.0)[0])) == 1
    assert (
        net(policy.act(None, anticipating(3 * [{}], [heavy, light], now_s=90.0)[0])) == 1
    )  # it is up, and no help


def test_answered_once():
    policy = scaler(answer_once=True)
    heavy, light = row(0, 960, 200, 10), row(1, 500, 200, 10)
    begin, _ = anticipating(2 * [{}], [heavy, light], now_s=0.0)
    assert net(policy.act(None, begin)) == 0  # the window begins: tier 1 alone
    here, _ = anticipating(2 * [{}], [heavy, light])
    assert net(policy.act(None, here)) == 1
    with_new = [{}, {}, {"status": InstanceStatus.STARTING}]
    again, _ = anticipating(with_new, [heavy, light], now_s=70.0)
    assert net(policy.act(None, again)) == 0
    both, _ = anticipating(with_new, [heavy, row(1, 960, 200, 10)], now_s=80.0)
    assert net(policy.act(None, both)) == 1
    calm, _ = anticipating(with_new, [light], now_s=90.0)
    assert net(policy.act(None, calm)) == 0
    relapse, _ = anticipating(with_new, [heavy, light], now_s=100.0)
    assert net(policy.act(None, relapse)) == 1


def test_idle_instances_are_isolated_once_a_window():
    policy = scaler()
    requests = [row(0, 190, 300, 10)]  # a peak of 0.299
    policy.act(None, anticipating(3 * [{}], requests, now_s=0.0)[0])
    starting = [{}, {}, {"status": InstanceStatus.STARTING}]
    assert net(policy.act(None, anticipating(starting, requests)[0])) == 0
    assert net(policy.act(None, anticipating(3 * [{}], requests)[0])) == -2
    assert net(policy.act(None, anticipating(3 * [{}], requests, now_s=120.0)[0])) == 0
    policy.act(None, anticipating(3 * [{}], requests, now_s=600.0)[0])
    assert net(policy.act(None, anticipating(3 * [{}], requests, now_s=660.0)[0])) == -2
    fresh = scaler()
    fresh.act(None, anticipating(2 * [{}], [], now_s=0.0)[0])
    assert net(fresh.act(None, anticipating(2 * [{}], [])[0])) == -1  # the fewest stay


def test_a_scale_in_leaves_what_the_forecasts_asked_for():
    """Four instances are asked for, of which a peak of 0.299 needs one."""
    past = served(350.0, 20.0, count=4)
    for floor, change in ((True, -1), (False, -4)):
        policy = scaler(scale_in_floor=floor)
        policy.act(None, state(endpoint(1, history=served(100.0, 20.0))))
        policy.act(None, state(endpoint(5, history=past), now_s=600.0))
        own = endpoint(instances(5 * [{}]), history=past)
        here = state(own, now_s=660.0, in_flight=in_flight([row(0, 190, 300, 10)]))
        assert net(policy.act(None, here)) == change


def test_a_scale_in_waits_until_usage_has_been_low_for_long_enough():
    policy = scaler(scale_in_hold_s=30.0)
    low, high = [row(0, 190, 300, 10)], [row(0, 500, 300, 10)]
    policy.act(None, anticipating(3 * [{}], low, now_s=0.0)[0])
    steps = [(60.0, low, 0), (80.0, high, 0), (90.0, low, 0), (110.0, low, 0), (120.0, low, -2)]
    for now_s, requests, change in steps:
        assert net(policy.act(None, anticipating(3 * [{}], requests, now_s=now_s)[0])) == change


def test_prompts_that_wait_keep_an_instance():
    waiting = [row(0, 190, 300, 10), row(1, 400, 50)]
    for counted, change in ((True, 0), (False, -2)):
        policy = scaler(unprefilled_in_map=counted)
        policy.act(None, anticipating(3 * [{}], waiting, now_s=0.0)[0])
        assert net(policy.act(None, anticipating(3 * [{}], waiting)[0])) == change


@pytest.mark.parametrize(
    "values",
    [{"lookahead_iterations": 0}, {"scale_in_usage": 0}, {"overload_share": 2}, {"extension_ratio": -1}],
)
def test_scaler_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        PreServeScalingConfig(**values)


def comparator(kind):
    policy = kind(ComparatorConfig(predictor=PREDICTOR))
    policy.reset(spec(max_instances=8), 0)
    return policy


def test_reactive():
    policy = comparator(PreServeReactivePolicy)
    assert net(policy.act(None, state(endpoint(at(0.71))))) == 1
    assert net(policy.act(None, state(endpoint(at(0.71)), now_s=10.0))) == 0
    assert net(policy.act(None, state(endpoint(at(0.29)), now_s=20.0))) == -1
    assert net(policy.act(None, state(endpoint(at(0.5)), now_s=40.0))) == 0


def test_proactive():
    policy = comparator(PreServeProactivePolicy)
    past = served(350.0, 20.0, count=4)
    assert net(policy.act(None, state(endpoint(at(0.9), history=past)))) == 2
    assert net(policy.act(None, state(endpoint(at(0.9, 6), history=past), now_s=60.0))) == 0
    assert net(policy.act(None, state(endpoint(at(0.9, 6), history=past), now_s=600.0))) == -2


def test_hybrid_corrects_the_forecast():
    policy = comparator(PreServeHybridPolicy)
    past = served(400.0, 20.0, count=4)
    assert net(policy.act(None, state(endpoint(at(0.5), history=past)))) == 2
    assert net(policy.act(None, state(endpoint(at(0.8, 4), history=past), now_s=60.0))) == 1
    assert net(policy.act(None, state(endpoint(at(0.1, 5), history=past), now_s=120.0))) == -1
    assert (
        net(policy.act(None, state(endpoint(at(0.1, 4), history=past), now_s=180.0))) == 0
    )  # the forecast's


def test_comparator_mistakes_are_named():
    with pytest.raises(ValueError, match="in_below_usage"):
        ComparatorConfig(in_below_usage=0.8)
    with pytest.raises(ValueError, match="cooldown_s"):
        ComparatorConfig(cooldown_s=-1)


def test_borne_load_by_hand():
    """2 and 4 requests/s of an instance are borne, 9 are not."""
    requests, violations = np.array([40.0, 80.0, 90.0, 10.0]), np.array([0.0, 4.0, 9.0, 0.0])
    assert borne_rps(requests, violations, np.array([2.0, 2.0, 1.0, 0.0]), 10.0, 0.05) == 4.0
    assert borne_rps(requests, requests, np.ones(4), 10.0, 0.05) == 0.0


def test_a_window_without_instances_at_its_start_shows_no_load_that_they_bore():
    """Of the days before an episode only traffic is known: 600 requests came, an instance was there for a minute."""
    policy = PassPolicy(PassConfig(forecasters=("last_value",)))
    policy.reset(spec(max_instances=9), 0)
    columns = {"requests": 60.0, "mean_instances": 1.0}
    past = {name: np.full(20, value) for name, value in columns.items()}
    whole = policy._borne(endpoint(at(0.5), history=traffic(60.0, end_s=1200.0, **past)))
    past["mean_instances"][:9] = 0.0
    partly = policy._borne(endpoint(at(0.5), history=traffic(60.0, end_s=660.0, **past)))
    past["mean_instances"][:19] = 0.0
    barely = policy._borne(endpoint(at(0.5), history=traffic(60.0, end_s=60.0, **past)))
    assert (whole, partly, barely) == (1.0, 1.0, 0.0)


def test_erlang_c_by_hand():
    """One server: the utilisation. Two at one erlang: 1/3. Too few: all wait."""
    assert erlang_c(0.6, 1) == pytest.approx(0.6)
    assert erlang_c(1.0, 2) == pytest.approx(1 / 3)
    assert erlang_c(2.0, 2) == 1.0
    assert servers_for(1.0, 0.34) == 2
    assert servers_for(1.0, 0.33) == 3
    assert servers_for(0.0, 0.05) == 1


def test_pass_forecasts_and_reacts():
    policy = PassPolicy(PassConfig(forecasters=("last_value",)))
    policy.reset(spec(max_instances=9), 0)
    past = served(10.0, 10.0, windows=6, count=0.5)  # 1 request/s on half an instance: one bears 2
    busy = traffic(
        60.0,
        end_s=4200.0,
        **{
            name: np.r_[past.rows[name], np.full(10, value)]
            for name, value in {"requests": 420.0, "violations": 42.0, "mean_instances": 1.0}.items()
        },
    )
    assert net(policy.act(None, state(endpoint(1, history=busy)))) == 3  # 7 over 2
    recent = traffic(10.0, requests=np.full(6, 70.0), violations=np.full(6, 10.0))
    late = endpoint(4, history=busy, recent=recent)
    assert net(policy.act(None, state(late, now_s=60.0))) == servers_for(3.5, 0.05) - 4 > 0
    calm = endpoint(4, history=busy, recent=traffic(10.0, requests=np.full(6, 70.0)))
    assert net(policy.act(None, state(calm, now_s=120.0))) == 0
    assert net(policy.act(None, state(endpoint(2), now_s=180.0))) == 0  # nothing is known


def test_the_ensemble_listens_to_who_did_best():
    series = np.tile([100.0, 500.0, 900.0], 60)
    config = PassConfig(window_s=28_800.0, forecasters=("last_value", "seasonal_naive"))
    assert Ensemble(config).forecast(0.0, series) == 500.0  # a season is three windows: 100, then 500
    steady = np.r_[np.tile([100.0, 900.0, 500.0], 20), np.full(8, 70.0)]
    assert Ensemble(config).forecast(0.0, steady) == 70.0
    assert Ensemble(PassConfig(forecasters=("moving_mean",))).forecast(0.0, np.array([4.0])) == 4.0


@pytest.mark.parametrize(
    "values", [{"forecasters": ()}, {"window_s": 0}, {"wait_share": 1}, {"choose_windows": 0}]
)
def test_pass_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        PassConfig(**values)
