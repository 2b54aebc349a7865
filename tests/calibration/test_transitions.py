import pytest

from serving_gym.calibration.specs import get_model
from serving_gym.calibration.transitions import COLD_START_RULE, LIVE_SWITCH_S, cold_start_s


@pytest.mark.parametrize(("width", "seconds"), [(2, 292.38), (4, 211.97), (8, 146.54)])
def test_llama_3_70b_starts_as_in_flying_serving_table_2(width, seconds):
    weight_bytes = get_model("llama-3-70b").weight_bytes
    assert cold_start_s(weight_bytes, width) == seconds
    assert COLD_START_RULE.seconds(weight_bytes, width) == pytest.approx(seconds, rel=0.06)


def test_smaller_models_and_wider_engines_start_faster():
    small, large = get_model("nemotron-8b-ultralong").weight_bytes, get_model("gpt-oss-120b").weight_bytes
    assert COLD_START_RULE.fixed_s < cold_start_s(small, 8) < cold_start_s(small, 1) < cold_start_s(large, 1)


def test_live_switch_is_four_orders_of_magnitude_faster():
    assert cold_start_s(get_model("llama-3-70b").weight_bytes, 8) / LIVE_SWITCH_S > 9000


def test_wrong_width_is_refused():
    with pytest.raises(ValueError, match="width=0 is not allowed"):
        cold_start_s(140e9, 0)
