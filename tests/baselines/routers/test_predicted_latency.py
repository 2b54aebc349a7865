"""llm-d's routing by latencies that it learns."""

import lightgbm
import numpy as np
import pytest

from serving_gym.baselines.common.routers.boosted_trees import fit_trees
from serving_gym.baselines.common.routers.learned_latency import FEATURES, Observations
from serving_gym.baselines.common.routers.predicted_latency import (
    PredictedLatencyConfig,
    PredictedLatencyPolicy,
    _fallback,
    kinds_of,
)
from tests.baselines.routers.states import arriving, engine, routing_spec, routing_state, sent


def test_trees_as_arrays_predict_as_lightgbm_does(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.random((500, 4))
    target = 10 * rows[:, 0] + rng.exponential(rows[:, 1])
    boosters = []
    train = lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *a, **k: boosters.append(train(*a, **k)) or boosters[-1])
    trees = fit_trees(rows, target, 0.9, seed=0)
    fresh = rng.random((64, 4))
    np.testing.assert_allclose(trees.predict(fresh), boosters[0].predict(fresh), rtol=1e-9)
    assert np.mean(target <= trees.predict(rows)) == pytest.approx(0.9, abs=0.05)
    np.testing.assert_array_equal(fit_trees(rows, target, 0.9, seed=0).predict(fresh), trees.predict(fresh))


def test_trees_of_too_few_rows_are_constant():
    trees = fit_trees(np.arange(6.0).reshape(-1, 1), np.full(6, 3.0), 0.0, seed=0)
    np.testing.assert_allclose(trees.predict(np.array([[0.0], [9.0]])), 3.0)


def _row(**features):
    return np.array([float(features.get(name, 0.0)) for name in FEATURES])


def test_observations_keep_rare_conditions():
    kept = Observations(each=2)
    kept.add(_row(num_request_waiting=20), 9.0)
    for i in range(5):
        kept.add(_row(kv_cache_percentage=0.51), float(i))
    kept.add(_row(prefix_cache_score=1.0), 7.0)
    assert len(kept) == 4
    assert kept.added == 7
    assert sorted(kept.arrays()[1].tolist()) == [3.0, 4.0, 7.0, 9.0]


def test_before_it_has_data_it_draws_by_the_fallback():
    state = routing_state([engine(0.5, num_waiting=4), engine(0.0), engine(1.0, num_waiting=4)])
    np.testing.assert_allclose(_fallback(state, np.array([0.0, 0.5, 0.0])), [0.17, 0.83, 0.01])
    policy = PredictedLatencyPolicy()
    policy.reset(routing_spec(3), 0)
    places = [policy.act(None, state) for _ in range(100)]
    assert places.count(1) > 60
    assert places.count(2) < 10


def _run(policy, ttft_s, steps=400):
    """A request every second; each place has its own TTFT, with noise, and answers at 10 ms a token."""
    rng = np.random.default_rng(1)
    flights, places = [], []
    for i in range(steps):
        now_s = float(i)
        state = routing_state(
            len(ttft_s), in_flight=flights, request=arriving(index=i, deadline_s=now_s + 1.0), now_s=now_s
        )
        place = policy.act(None, state)
        places.append(place)
        first_s = now_s + ttft_s[place] * rng.uniform(0.8, 1.2)
        tokens = int((now_s + 1.0 - first_s) / 0.01 + 1e-6)
        flights = [sent(place, index=i, first_token_s=first_s, generated_tokens=tokens)]
    return places


def test_it_learns_which_kind_of_engine_is_slow():
    spec = routing_spec(2, num_gpus=np.array([1, 2]))
    policy = PredictedLatencyPolicy(PredictedLatencyConfig(strategy="most", min_samples=60))
    policy.reset(spec, 0)
    places = _run(policy, (0.6, 0.1))
    assert 20 < sum(places[:60]) < 40
    assert np.mean(places[200:]) > 0.95
    rows = np.stack([_row(input_token_length=100, effective_input_tokens=100, pod_type=k) for k in (0, 1)])
    ttft_s, tpot_s = policy._model.predict(rows)
    np.testing.assert_allclose(ttft_s, [0.6 * 1.16, 0.1 * 1.16], rtol=0.15)  # the 90th percentile
    np.testing.assert_allclose(tpot_s, 0.01, rtol=0.1)


def test_least_headroom_fills_the_slow_one_while_it_keeps_the_slo():
    policy = PredictedLatencyPolicy(PredictedLatencyConfig(min_samples=60))
    policy.reset(routing_spec(2, num_gpus=np.array([1, 2])), 0)
    assert np.mean(_run(policy, (0.6, 0.1))[200:]) < 0.05


def test_kinds():
    fleet = routing_spec(3, gpus=("H100", "A100", "H100"), num_gpus=np.array([1, 1, 1])).fleet
    assert kinds_of(fleet).tolist() == [0, 1, 0]


@pytest.mark.parametrize("params", [{"quantile": 1.0}, {"retrain_s": 0.0}, {"min_samples": 0}])
def test_it_refuses(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        PredictedLatencyConfig(**params)
