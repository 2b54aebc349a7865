import math
import os

import pytest

from serving_gym.calibration.fitting.loading import fit_storage_bandwidth
from serving_gym.calibration.fitting.power import fit_power_shares
from serving_gym.calibration.hardware import GPUS
from serving_gym.calibration.power import DECODE_SHARE, POWER_LIMIT_W, PREFILL_SHARE, power_of
from serving_gym.calibration.transitions import STORAGE_BYTES_PER_S

needs_data = pytest.mark.skipif(not os.environ.get("SERVING_GYM_DATA"), reason="SERVING_GYM_DATA is not set")


@needs_data
def test_the_shares_are_what_the_measurements_give():
    shares = fit_power_shares()
    assert {degree: round(prefill, 2) for degree, (prefill, _) in shares.items()} == PREFILL_SHARE
    assert {degree: round(decode, 2) for degree, (_, decode) in shares.items()} == DECODE_SHARE


@needs_data
def test_the_storage_bandwidths_are_what_the_measurements_give():
    assert fit_storage_bandwidth() == pytest.approx(STORAGE_BYTES_PER_S, rel=0.005)


@pytest.mark.parametrize("gpu", sorted(POWER_LIMIT_W))
@pytest.mark.parametrize("num_gpus", [1, 2, 3, 4, 8, 16])
def test_idle_below_decode_below_prefill_below_the_limit(gpu, num_gpus):
    power = power_of(gpu, num_gpus)
    assert 0 < power.idle_w < power.decode_w < power.prefill_w <= POWER_LIMIT_W[gpu]


def test_every_nvidia_gpu_has_a_limit_and_others_have_no_power():
    assert {name for name in GPUS if name not in POWER_LIMIT_W} <= {"Xeon-32c-AMX", "cpu"}
    assert math.isnan(power_of("Xeon-32c-AMX", 1).idle_w)


def test_prices_are_documented_or_missing():
    assert GPUS["H100"].price_usd_per_hour > GPUS["A100-80GB"].price_usd_per_hour > 0
    assert GPUS["A40"].price_usd_per_hour is None
