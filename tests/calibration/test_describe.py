import warnings

import pytest

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.describe import describe, measured_gpus
from serving_gym.calibration.profile import KINDS, load_profile


def sentence(model, gpu, tp, engine="vllm-0.24", pp=1):
    return describe(find_profile(Deployment(model, gpu, tp, engine, pp=pp))[0], tp)


@pytest.mark.parametrize(
    ("deployment", "begins"),
    [
        (
            ("llama-3.1-8b", "H100", 1),
            "llama-3.1-8b on 1 x H100 by vllm-0.24: measured (on vLLM 0.24.0, 2026-11-26",
        ),
        (
            ("llama-3.1-8b", "H100", 2),
            "llama-3.1-8b on 2 x H100 by vllm-0.24: transferred (kernels measured, overheads of other widths",
        ),
        (
            ("llama-3.1-8b", "A100-80GB", 1),
            "llama-3.1-8b on 1 x A100-80GB by vllm-0.24: transferred (kernels measured, overheads of llama-3.1-8b on "
            "H100 and H200",
        ),
        (
            ("llama-3.1-70b", "H100", 4),
            "llama-3.1-70b on 4 x H100 by vllm-0.24: transferred (kernels measured, overheads of llama-3.1-8b on "
            "H100 and H200",
        ),
        (
            ("opt-66b", "H100", 3),
            "opt-66b on 3 x H100 by vllm-0.24: transferred (kernels of neighbouring widths, overheads of",
        ),
        (
            ("kimi-k2.5-fp4", "B300", 8),
            "kimi-k2.5-fp4 on 8 x B300 by vllm-0.24: transferred (kernels by the efficiencies of B200, overheads of "
            "vllm-0.15's mixtures of experts with the step of llama-3.1-8b on H100 and H200",
        ),
        (
            ("opt-30b", "H100", 4, "vllm-0.15"),
            "opt-30b on 4 x H100 by vllm-0.15: transferred (kernels measured, overheads of other dense models",
        ),
        (
            ("qwen3-32b", "H100", 4, "vllm-0.12"),
            "qwen3-32b on 4 x H100 by vllm-0.12: fitted (to published runs of it; expected error TPOT 2 %",
        ),
        (("tiny-llama", "cpu", 2), "tiny-llama on 2 x cpu: measured (on vLLM 0.32.0, 2026-11-21"),
    ],
)
def test_one_sentence_says_what_was_measured(deployment, begins):
    assert sentence(*deployment).startswith(begins)


def test_a_roofline_says_that_nothing_was_measured():
    with pytest.warns(UserWarning, match="source='roofline'"):
        said = sentence("llama-3.1-8b", "A40", 1)
    assert said.endswith("roofline (assumed efficiencies, no kernel of it was measured)")


def test_profiles_without_an_engine_are_described_too():
    assert describe(load_profile("llama-2-7b", "A40"), 1) == (
        "llama-2-7b on 1 x A40: transferred (kernels measured, overheads of other models and GPUs)"
    )
    assert load_profile("llama-3.1-8b", "H100").kind == "fitted"


def test_where_an_engine_was_measured_is_read_from_the_profiles():
    assert measured_gpus("vllm-0.24") == {"llama-3.1-8b": ("H100", "H200")}
    assert measured_gpus("vllm-0.15")["llama-2-70b"] == ("A100-80GB", "H100")


def test_every_kind_is_one_of_four():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = {
            find_profile(Deployment("llama-3.1-8b", gpu, tp, "vllm-0.24"))[0].kind
            for gpu in ("H100", "L40S", "Xeon-32c-AMX")
            for tp in (1, 2)
        }
    assert kinds == {"measured", "transferred", "roofline"} < set(KINDS)
