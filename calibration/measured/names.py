"""What published measurements call models and GPUs, in this project's names."""

import re

from serving_gym.calibration.lookup import nearest
from serving_gym.calibration.models import MODELS, get_model

GPU_NAMES = {
    "a100": "A100-80GB",
    "h100": "H100",
    "h200": "H200",
    "l40s": "L40S",
    "b200": "B200",
    "b300": "B300",
    "a40": "A40",
    "h100-80gb-pcap": "H100-pcap",
}
# What is left of a checkpoint's name once owner, training stage and release are gone, where it is no name of ours.
_STAGES = re.compile(
    r"[-_](hf|instruct|chat|base|it|v0\.\d|\d{4}|dynamic|17b-16e|fp8|nvfp4|fp4|mxfp4)(?=[-_]|$)"
)
_ALIASES = {
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama2-70b": "llama-2-70b",
    "deepseek-r1": "deepseek-v3",
    "kimi-k2": "kimi-k2.5",
    "minimax-m2": "minimax-m2.5",
    "llama-4-scout-17b-16e": "llama-4-scout",
}
_PRECISIONS = {"fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4", "int4": "int4", "int4_wo": "int4"}
OWN_PRECISION = ("gpt-oss-120b",)  # published in one precision only, which their specification states


def model_name(published: str, precision: str = "") -> str:
    """Name of a model here.

    Args:
        published: Checkpoint name, perhaps with its owner.
        precision: Type of its matrices as published; blank or 16-bit types change nothing.

    Raises:
        ValueError: The model is unknown; the message names the nearest known one.
    """
    bare = published.split("/")[-1].lower()
    stripped = bare
    while _STAGES.search(stripped):
        stripped = _STAGES.sub("", stripped)
    name = _ALIASES.get(stripped, stripped)
    if name not in MODELS:
        raise ValueError(f"model {published!r} is unknown{nearest(name, MODELS)}")
    suffix = _PRECISIONS.get(precision.lower(), "")
    return name if not suffix or name in OWN_PRECISION else get_model(f"{name}-{suffix}").name


def gpu_name(published: str) -> str:
    """Name of a GPU here.

    Raises:
        ValueError: The GPU is unknown.
    """
    lowered = published.lower()
    for key in sorted(GPU_NAMES, key=len, reverse=True):
        if lowered.startswith(key):
            return GPU_NAMES[key]
    raise ValueError(f"GPU {published!r} is unknown{nearest(lowered, GPU_NAMES)}")
