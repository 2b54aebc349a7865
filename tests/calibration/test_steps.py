from dataclasses import replace

import numpy as np
import pytest

from serving_gym.calibration.coefficients import RATIO_TOKENS
from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.fitting.steps import (
    CAPPED_PREFILL_FACTOR,
    configurations,
    fit_steps,
    profile_with,
    step_log_errors,
    uncapped,
)
from serving_gym.calibration.measured.steps import Step, predict_step

DEPLOYMENT = Deployment("llama-2-70b", "H100", 4, "splitwise")


def made_up(prompt, batch, output=128):
    """A step of an engine with a kink in its prefill."""
    tokens = prompt * batch
    prefill_s = 0.02 + 7e-5 * tokens + 5e-5 * max(0, tokens - 2048)
    return Step(DEPLOYMENT, prompt, batch, output, prefill_s, 0.03 + 2e-4 * batch, 0)


def test_a_kink_in_prefill_is_followed_between_the_configurations_shown():
    shown = [made_up(p, 1) for p in (128, 256, 512, 1024, 2048, 8192)]
    shown += [made_up(512, b) for b in (2, 4, 16, 32)]
    profile = profile_with(DEPLOYMENT, fit_steps(shown))
    for step in (made_up(4096, 1), made_up(512, 8)):
        errors = step_log_errors(step, profile)
        assert errors["prefill_step"] == pytest.approx(0.0, abs=0.12)
        assert errors["decode_step"] == pytest.approx(0.0, abs=0.02)


def test_repeats_count_as_one_configuration():
    slow = replace(made_up(512, 1), prefill_s=1.0)
    (shown,) = configurations([made_up(512, 1), made_up(512, 1), slow])
    assert shown.prefill_s == made_up(512, 1).prefill_s


def test_the_capped_part_differs_in_prefill_alone():
    step = replace(made_up(512, 1), deployment=replace(DEPLOYMENT, gpu="H100-pcap"))
    assert uncapped(step).prefill_s == pytest.approx(step.prefill_s / CAPPED_PREFILL_FACTOR)
    assert uncapped(step).decode_s == step.decode_s
    plain = predict_step(made_up(1024, 1), find_profile(DEPLOYMENT)[0])
    limited = predict_step(made_up(1024, 1), find_profile(replace(DEPLOYMENT, gpu="H100-pcap"))[0])
    assert limited["prefill_step"] == pytest.approx(CAPPED_PREFILL_FACTOR * plain["prefill_step"], rel=0.01)
    assert limited["decode_step"] == pytest.approx(plain["decode_step"], rel=1e-3)


def test_curve_covers_the_batches_of_the_data():
    assert RATIO_TOKENS[-1] == 64 * 512
    assert np.all(np.diff(np.log2(RATIO_TOKENS)) == 1.0)
