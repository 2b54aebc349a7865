import shutil
import warnings
from importlib import resources

import numpy as np
import pytest
import yaml

from serving_gym.calibration.deployments import Deployment, find_profile, load_engine_profile
from serving_gym.calibration.engines import Engine, get_engine, load_engines
from serving_gym.calibration.memory import check_fits
from serving_gym.calibration.specs import GPUS, MODELS
from serving_gym.runners.profile_fitting import regenerate
from serving_gym.runners.profile_fitting.live_engines import (
    BATCHES,
    BEFORE,
    CONTEXTS,
    ENGINE,
    MODEL,
    carried,
    fit_to_profiles,
    iterations,
    profile_around,
)

COMMITTED = resources.files("serving_gym.calibration") / "engines.yaml"


def test_the_command_writes_what_is_committed(tmp_path):
    shutil.copy(str(COMMITTED), tmp_path / "engines.yaml")
    raw = yaml.safe_load((tmp_path / "engines.yaml").read_text())
    for key in [key for key in raw["overheads"] if key.startswith(ENGINE)]:
        del raw["overheads"][key]
    (tmp_path / "engines.yaml").write_text(yaml.safe_dump(raw, sort_keys=False, width=110))
    request = regenerate.Request(tmp_path, held_out=False, folds=2, report=print)
    (path,) = regenerate.PARTS["live"](request)
    again, before = yaml.safe_load(path.read_text()), yaml.safe_load(COMMITTED.read_text(encoding="utf-8"))
    assert list(again["overheads"]) == list(before["overheads"])
    assert again["carried"] == before["carried"]
    for key, values in before["overheads"].items():
        for name, value in values.items():
            assert again["overheads"][key][name] == pytest.approx(value, rel=2e-2, abs=1e-7), (key, name)


def errors(gpu, overheads):
    """Errors of iterations that only decode and of those with a prompt, against the measured profile of a GPU."""
    profile = load_engine_profile(MODEL, gpu, ENGINE)
    found = iterations(profile_around(profile, overheads)) / iterations(profile.latency_model(1)) - 1.0
    decode = len(BATCHES) * len(CONTEXTS)
    return np.abs(found[:decode]), np.abs(found[decode:])


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_kernels_and_overheads_give_the_measured_iteration_times(gpu):
    """One set of overheads for both GPUs, without the profiles themselves."""
    decode, mixed = errors(gpu, get_engine(ENGINE, MODEL))
    assert np.median(decode) < 0.02
    assert np.median(mixed) < 0.02
    assert max(decode.max(), mixed.max()) < 0.1


@pytest.mark.parametrize(("shown", "left_out"), [("H100", "H200"), ("H200", "H100")])
def test_the_other_gpu_alone_predicts_a_gpu_left_out(shown, left_out):
    before = get_engine(BEFORE, MODEL)
    fitted = fit_to_profiles([load_engine_profile(MODEL, shown, ENGINE)], before)
    decode, mixed = errors(left_out, fitted)
    assert np.median(decode) < 0.03
    assert np.median(mixed) < 0.04
    unmoved = errors(left_out, before)
    assert np.median(decode) < np.median(unmoved[0])
    assert np.median(mixed) < np.median(unmoved[1])


def test_a_step_adds_to_times_and_multiplies_ratios():
    before = Engine(fixed_s=1e-3, kv_ratio=1.0, frontend_s=5e-3)
    after = Engine(
        fixed_s=0.5e-3, kv_ratio=0.8, frontend_s=3e-3, frontend_request_s=1e-4, async_scheduling=True
    )
    moved = carried(Engine(fixed_s=2e-3, kv_ratio=0.9, frontend_s=9e-3), before, after)
    assert moved.fixed_s == pytest.approx(1.5e-3)
    assert moved.kv_ratio == pytest.approx(0.72)
    assert (moved.frontend_s, moved.frontend_request_s, moved.async_scheduling) == (3e-3, 1e-4, True)
    assert carried(Engine(), before, after).fixed_s == 0.0  # never below nothing


def test_every_model_has_a_profile_on_every_gpu_that_holds_it():
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a roofline says so
        for model in MODELS.values():
            for gpu in GPUS.values():
                for tp in (1, 2, 4, 8):
                    try:
                        check_fits(model, gpu, tp)
                        if gpu.name == "cpu" and model.name == "tiny-llama" and tp > 2:
                            continue
                    except ValueError:
                        continue
                    profile, front_end = find_profile(Deployment(model.name, gpu.name, tp, ENGINE))
                    model_there = profile.latency_model(tp)
                    assert 0.0 < model_there.iteration_s(1, 100) < model_there.iteration_s(256, 256_000)
                    assert front_end.fixed_s > 0.0
                    assert profile.async_scheduling == (gpu.name != "cpu" or model.name != "tiny-llama")
                    found.setdefault(gpu.name, set()).add(profile.kind)
    assert found["H100"] >= {"measured", "transferred"}
    assert found["B200"] >= {"transferred"}


def test_a_cpu_has_one_profile_whatever_engine_is_named():
    one, two = (find_profile(Deployment("tiny-llama", "cpu", 1, name))[0] for name in (ENGINE, "vllm-0.15"))
    assert one is two
    assert one.kind == "measured"
    with pytest.raises(ValueError, match=r"no coefficients for tp=4; allowed: 1, 2"):
        find_profile(Deployment("tiny-llama", "cpu", 4, ENGINE))
    with pytest.raises(ValueError, match="unknown engine"):
        find_profile(Deployment("tiny-llama", "cpu", 1, "vllm-9"))


def test_other_versions_schedule_as_before():
    assert all(
        not engine.async_scheduling and not engine.frontend_request_s
        for name, engine in load_engines().items()
        if not name.startswith(ENGINE)
    )
