from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving_gym.calibration.coefficients import roofline_coefficients
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.hardware import GpuSpec, get_gpu
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import dump_profile, load_profile, parse_profile, read_profile
from serving_gym.envs.live.gauges import CacheConfig
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.tiny_model import KV_BYTES_PER_TOKEN, TINY_LLAMA, write_tiny_model
from serving_gym.runners.measuring.composition import Step
from serving_gym.runners.measuring.fit import errors_of, fit_coefficients, step_s
from serving_gym.runners.measuring.front_end import Probe, fit_front_end
from serving_gym.runners.measuring.intervals import Interval, intervals_of
from serving_gym.runners.measuring.loads import Limits, designed_loads, held_out
from serving_gym.runners.measuring.measure import PULL, Measurement, profile_of
from serving_gym.runners.measuring.model import model_from_config, served_model

CPU = GpuSpec("cpu", 16e9, 40e9, {"bf16": 500e9}, 40e9)
TINY = model_from_config(TINY_LLAMA, "tiny-llama")


def runs_with(latency: LatencyModel, noise: float = 0.0) -> list[tuple[int, list[Step]]]:
    """What a perfect log would say of an engine, a few iterations of every configuration."""
    rng = np.random.default_rng(0)
    runs = []
    for number, load in enumerate(designed_loads(Limits(16, 512, 2048, 16352))):
        context = load.decoding * load.prompt
        kinds = [(load.decoding, context, 0, 0)] * 20 if load.decoding else []
        if load.injected:
            chunk = min(load.injected_prompt, 512 - load.decoding)
            kinds += [(load.decoding, context, chunk, chunk * (chunk + 1) // 2)] * 4
        steps = []
        for decoding, tokens, prompt, pairs in kinds:
            chunks = [(0, prompt)] if prompt else []
            seconds = latency.iteration_s(decoding, tokens, chunks) * np.exp(noise * rng.standard_normal())
            steps.append(Step(decoding, tokens, prompt, pairs, seconds))
        runs.append((number, steps))
    return runs


@pytest.mark.parametrize(("model", "gpu"), [(TINY, CPU), (get_model("llama-3.1-8b"), get_gpu("H100"))])
def test_the_times_of_a_known_engine_are_found_again(model, gpu) -> None:
    true = replace(
        roofline_coefficients(gpu), layer_s=0.0, fixed_s=2e-3, kv_bandwidth_ratio=0.3, token_s=2e-6
    )
    latency = LatencyModel(model, gpu, 1, true)
    cut = [(number, intervals_of(steps)) for number, steps in runs_with(latency, noise=0.05)]
    fitted = [interval for number, intervals in cut for interval in intervals if not held_out(number)]
    kept_out = [interval for number, intervals in cut for interval in intervals if held_out(number)]
    found = fit_coefficients(model, gpu, 1, replace(roofline_coefficients(gpu), layer_s=0.0), PULL, fitted)
    errors = errors_of(LatencyModel(model, gpu, 1, found), kept_out)
    assert errors["decode_stretch"]["ape_mean"] < 0.02
    assert errors["prefill_stretch"]["ape_mean"] < 0.06
    assert abs(errors["decode_stretch"]["together"]) < 0.01


def test_a_step_is_what_the_model_says_of_an_iteration() -> None:
    latency = LatencyModel(TINY, CPU, 1, roofline_coefficients(CPU))
    decode = Step(4, 1000, 0, 0, 1.0)
    mixed = replace(decode, prompt_tokens=100, pairs=5050)
    assert step_s(latency, decode) == pytest.approx(latency.iteration_s(4, 1000))
    assert step_s(latency, mixed) == pytest.approx(latency.iteration_s(4, 1000, [(0, 100)]))


def test_too_little_to_fit() -> None:
    only = [Interval((Step(1, 10, 0, 0, 0.01),))] * 40
    with pytest.raises(
        ValueError, match=r"gave 40 intervals of iterations \(decode_stretch\), too few to fit 9"
    ):
        fit_coefficients(TINY, CPU, 1, roofline_coefficients(CPU), PULL, only)


def test_a_measured_profile_is_read_back(tmp_path: Path) -> None:
    latency = LatencyModel(TINY, CPU, 1, roofline_coefficients(CPU))
    server = Server("http://x", "tiny", "folder", "0.32.0", 2048, CacheConfig(511, 32))
    loads = designed_loads(Limits(16, 512, 2048, 16352))
    measurement = Measurement(server, loads, runs_with(latency), [], probes_with(latency), 60.0, 1)
    profile = profile_of(measurement, TINY, CPU, 1, "2026-01-31", "python -m runners.calibrate")
    text = dump_profile(profile)
    (tmp_path / "mine.yaml").write_text(text)
    again = read_profile(tmp_path / "mine.yaml")
    assert dump_profile(again) == text
    assert (again.model, again.gpu, again.source) == (TINY, CPU, "measured")
    assert again.provenance["engine"] == "vLLM 0.32.0"
    assert again.provenance["date"] == "2026-01-31"
    assert again.provenance["iterations"] == again.provenance["iterations_used"] > 500
    assert again.provenance["front_end_requests"] == 9
    assert any("did the same work" in note for note in again.provenance["notes"])
    assert again.frontends[1].fixed_s == pytest.approx(0.03, rel=0.05)
    assert again.held_out["configurations"] == sum(held_out(n) for n in range(len(loads)))
    assert again.held_out["decode_stretch"]["ape_median"] < 0.05
    assert again.latency_model(1).iteration_s(4, 1000) == pytest.approx(
        latency.iteration_s(4, 1000), rel=0.05
    )


def probes_with(latency: LatencyModel) -> list[Probe]:
    """A front end of 30 ms and 10 us a token, before which one iteration is decided already; one probe met a stall."""

    def alone(prompt: int) -> float:
        return 0.03 + 1e-5 * prompt + latency.iteration_s(0, 0, [(0, prompt)])

    def beside(moment: float) -> float:
        ahead_s = (moment + 1.0) * latency.iteration_s(4, 1000)
        return 0.03 + 32e-5 + ahead_s + latency.iteration_s(4, 1000, [(0, 32)])

    lone = [Probe(prompt, alone(prompt)) for prompt in (32, 32, 160, 160, 512)]
    busy = [Probe(32, beside(moment), 4, 1000.0) for moment in (0.25, 0.5, 0.75)]
    return [*lone, *busy, Probe(32, 9.0)]


def test_the_front_end_is_found_again() -> None:
    latency = LatencyModel(TINY, CPU, 1, roofline_coefficients(CPU))
    found = fit_front_end(latency, probes_with(latency))
    assert found.fixed_s == pytest.approx(0.03, rel=0.01)
    assert found.token_s == pytest.approx(1e-5, rel=0.05)
    assert found.pipeline_iterations == pytest.approx(1.0, rel=0.02)
    assert fit_front_end(latency, []) == Frontend()
    its_own = fit_front_end(latency, probes_with(latency), asynchronous=True)
    assert its_own.pipeline_iterations == pytest.approx(0.0, abs=0.02)
    assert its_own.fixed_s == found.fixed_s


def test_known_models_and_gpus_stand_by_name() -> None:
    profile = load_profile("llama-3.1-8b", "H100")
    assert "model: llama-3.1-8b\n" in dump_profile(profile)
    assert parse_profile(dump_profile(profile)).model == profile.model


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model: {name: a}\n")
    with pytest.raises(ValueError, match="is not a profile"):
        read_profile(tmp_path / "x.yaml")


def test_where_a_model_comes_from(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    assert served_model(None, str(folder), "tiny-llama") == TINY
    assert served_model(str(folder), "elsewhere", "tiny-llama") == TINY
    assert served_model("llama-3.1-8b", str(folder), "x").name == "llama-3.1-8b"
    assert TINY.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    assert TINY.weight_bytes == pytest.approx(2 * 5.3e6, rel=0.02)
    with pytest.raises(ValueError, match=r"has no config\.json on this machine: give model=NAME"):
        served_model(None, "meta/llama", "x")
    with pytest.raises(ValueError, match="unknown model 'lama'"):
        served_model("lama", "meta/llama", "x")
    with pytest.raises(ValueError, match="has no 'hidden_size'"):
        model_from_config({"num_hidden_layers": 1}, "x")
