"""PreServe's reproduction: what its choices change, and Figure 4's timelines."""

from types import SimpleNamespace

import numpy as np
import pytest

from serving_gym.baselines.preserve.instance_scaler import PreServeScalingConfig
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.preserve.scaling import Scalers, sigma_of
from serving_gym.runners.reproduction.preserve.study import Study
from serving_gym.runners.reproduction.preserve.timelines import timeline


def study(kind, **choices):
    return kind(ReproduceConfig(out="unused", paper="preserve", choices=choices), None)


def test_choices_change_the_setting_and_the_policies():
    default, other = study(Study), study(Study, answers="quantiles", reading="literal", magnus_memory="final")
    assert (
        "workload.params.output_tokens=[8.4,145.6,1057.8]" in default.setting
    )  # 266.1 / 159 times the quantiles
    assert not any("output_tokens" in word for word in other.setting)
    assert [default.file_of(name) for name in ("preserve", "magnus", "sia")] == ["preserve", "magnus", "sia"]
    assert [other.file_of(name) for name in ("preserve", "magnus")] == ["preserve_literal", "magnus_final"]
    assert default.slo_s == 0.2


def test_choices_change_the_scaler():
    assert study(Scalers).policy("PreServe").config == PreServeScalingConfig()
    literal = study(Scalers, reading="literal", scale_in="at_once").policy("PreServe").config
    assert (literal.scale_in_floor, literal.unprefilled_in_map, literal.answer_once) == (False, False, True)
    sustained = study(Scalers, scale_in="sustained").policy("PreServe").config
    assert (sustained.scale_in_floor, sustained.scale_in_hold_s) == (False, 60.0)
    assert study(Scalers, errors="absolute").prediction.name == "preserve"


def test_a_wrong_choice_is_named():
    with pytest.raises(ValueError, match="literl"):
        _ = study(Study, reading="literl").choices


def test_proportional_errors_have_the_mean_that_is_asked_for():
    sigma = sigma_of(0.3)
    factor = np.exp(sigma * np.random.default_rng(0).standard_normal(200_000))
    assert np.abs(factor - 1).mean() == pytest.approx(0.3, rel=0.01)


def test_a_timeline_by_hand():
    """On the first instance 10 prompt tokens wait until 2 s; from then to 6 s they and 8 answer tokens, 2 a second."""
    records = SimpleNamespace(
        engine=np.array([0, 1]),
        arrival_s=np.array([0.5, 0.0]),
        first_token_s=np.array([2.0, 0.5]),
        finish_s=np.array([6.0, 8.0]),
        input_tokens=np.array([10, 98]),
        output_tokens=np.array([8, 1]),
        e2e_s=np.array([5.5, 8.0]),
    )
    lines = timeline(records, np.array([10.0, 100.0]), 6.0)
    np.testing.assert_array_equal(lines.queued_tokens[0], [10, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(lines.kv_usage[0], [0, 1.0, 1.2, 1.4, 1.6, 0])
    assert lines.normalised_s[0, 0] == 5.5 / 8
    assert np.isnan(lines.normalised_s[0, 1:]).all()
    assert lines.unbalanced == pytest.approx(2 / 6)  # the other is at 98 %, the first is empty at 1 and 6 s
    lines.kv_usage[1] = 0.5
    assert lines.unbalanced == pytest.approx(4 / 6)
    assert lines.spread == pytest.approx((0.5 + 0.5 + 0.7 + 0.9 + 1.1 + 0.5) / 6)
