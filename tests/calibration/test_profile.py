import warnings
from importlib import resources

import pytest
import yaml

from serving_gym.calibration.profile import dump_profile, load_profile, parse_profile, profile_file_name
from serving_gym.calibration.specs import MODELS

FOLDER = resources.files("serving_gym.calibration") / "profiles"


def read(name):
    return parse_profile((FOLDER / name).read_text(encoding="utf-8"))


ALL_FILES = sorted(file.name for file in FOLDER.iterdir())
MEASURED_FILES = [name for name in ALL_FILES if read(name).source == "measured"]  # on a running engine
FILES = [name for name in ALL_FILES if name not in MEASURED_FILES]
ENGINE_FILES = [name for name in FILES if read(name).engine]
ENVIRONMENT_FILES = [name for name in FILES if not read(name).engine]
NEVER_RUN = ["llama-2-7b_a40.yaml"]  # kernels and host terms, and no run of an engine to hold them against


@pytest.mark.parametrize("name", FILES)
def test_committed_profile_round_trips_and_says_where_it_comes_from(name):
    profile = read(name)
    assert dump_profile(profile) == (FOLDER / name).read_text(encoding="utf-8")
    assert name == profile_file_name(profile.model.name, profile.gpu.name, profile.engine)
    assert profile.source == ("kernels and engine" if name in NEVER_RUN else "fitted")
    sources = profile.provenance.get("end_to_end", profile.provenance.get("iterations", []))
    assert bool(sources) == (name not in NEVER_RUN)
    assert all(entry["rows"] and entry["licence"] and not entry["file"].startswith("/") for entry in sources)
    assert profile.widths


@pytest.mark.parametrize("name", MEASURED_FILES)
def test_what_was_measured_on_a_running_engine_says_how(name):
    profile = read(name)
    assert dump_profile(profile) == (FOLDER / name).read_text(encoding="utf-8")
    assert name == profile_file_name(profile.model.name, profile.gpu.name, profile.engine)
    assert {"engine", "date", "command", "iterations_used", "fit"} <= profile.provenance.keys()
    assert profile.provenance["iterations_used"] >= 1000
    unit = "step" if "decode_step" in profile.held_out else "stretch"
    assert all(profile.held_out[f"{kind}_{unit}"]["n"] > 0 for kind in ("decode", "prefill"))
    assert profile.widths


@pytest.mark.parametrize("name", ENVIRONMENT_FILES)
def test_profiles_of_environments_state_kernels_and_held_out_error(name):
    profile = read(name)
    assert profile.provenance["kernels"]["licence"]
    figures = profile.held_out["dense_layers" if name in NEVER_RUN else "tpot"]
    assert 0.0 < figures["ape_median"] < 0.1
    for width in profile.widths:
        profile.latency_model(width)


@pytest.mark.parametrize("name", ENGINE_FILES)
def test_profiles_of_engines_state_errors_on_what_the_fit_never_saw(name):
    held_out = read(name).held_out
    figures = held_out["all"] if "all" in held_out else held_out["unseen"]["all"]
    assert figures
    assert all(0.0 < target["ape_median"] < 0.5 and target["n"] for target in figures.values())


@pytest.mark.parametrize("name", FILES)
def test_coefficients_are_physical(name):
    profile = parse_profile(
        (resources.files("serving_gym.calibration") / "profiles" / name).read_text(encoding="utf-8")
    )
    for coefficients in profile.coefficients.values():
        values = vars(coefficients).copy()
        curve = values.pop("matrix_ratios")
        assert all(0.0 < value <= 1.0 for key, value in values.items() if key.endswith("_ratio"))
        assert all(value >= 0.0 for value in values.values())
        assert not curve or 0.1 < min(curve) < max(curve) < 10.0


def test_every_committed_profile_parses_without_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_profile("llama-3-70b", "H200").widths == (2, 4, 8)


def test_an_a40_reads_weights_and_cache_at_the_speed_of_its_memory():
    profile = load_profile("llama-2-7b", "A40")
    latency, a100 = profile.latency_model(1), load_profile("llama-2-7b", "A100-80GB").latency_model(1)
    assert 1.0 < latency.iteration_s(1, 100) / (profile.model.weight_bytes / profile.gpu.bandwidth) < 1.5
    assert 1.0 < latency.iteration_s(64, 30_000) / a100.iteration_s(64, 30_000) < 2.039e12 / 696e9
    with pytest.raises(ValueError, match="no coefficients for tp=2; allowed: 1"):
        profile.latency_model(2)


def test_unmeasured_pair_falls_back_to_the_roofline_and_says_so():
    with pytest.warns(UserWarning, match=r"llama-3.1-8b on A40.*source='roofline'"):
        profile = load_profile("llama-3.1-8b", "A40")
    assert profile.source == "roofline"
    assert profile.widths == ()
    assert profile.latency_model(4).iteration_s(1, 100) < profile.latency_model(1).iteration_s(1, 100)


def test_roofline_is_close_to_a_fitted_profile():
    fitted = load_profile("llama-3.1-8b", "H100").latency_model(1)
    assert MODELS["nemotron-8b-ultralong"].weight_bytes == fitted.model.weight_bytes
    with pytest.warns(UserWarning, match="roofline"):
        roofline = load_profile("nemotron-8b-ultralong", "H100").latency_model(1)
    assert roofline.iteration_s(32, 32_000) == pytest.approx(fitted.iteration_s(32, 32_000), rel=0.15)


def test_unknown_names_and_widths_are_refused():
    with pytest.raises(ValueError, match="did you mean 'gpt-oss-"):
        load_profile("gpt-oss", "H200")
    with pytest.raises(ValueError, match=r"no coefficients for tp=3; allowed: 2, 4, 8"):
        load_profile("llama-3-70b", "H200").latency_model(3)
    with pytest.raises(ValueError, match="does not fit 1 x H100"):
        load_profile("llama-3.1-70b", "H100").latency_model(1)


def test_profiles_hold_no_paths():
    for name in ENVIRONMENT_FILES:
        raw = yaml.safe_load(
            (resources.files("serving_gym.calibration") / "profiles" / name).read_text(encoding="utf-8")
        )
        files = raw["provenance"]["kernels"]["files"] + [
            entry["file"] for entry in raw["provenance"].get("end_to_end", [])
        ]
        assert all(not file.startswith("/") for file in files)
