"""The size of a served model, from the `config.json` of its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from serving_gym.calibration.models import MODELS, ModelSpec, get_model

_DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def served_model(name: str | None, root: str, served_name: str) -> ModelSpec:
    """The model that a server serves.

    Args:
        name: a model of `calibration.models`, or a folder or file with a `config.json`; None: what the server says.
        root: where the server says its weights come from.
        served_name: name it serves them under, which the model takes where it comes from a file.

    Raises:
        ValueError: the model is not known and its configuration cannot be found or read.
    """
    if name in MODELS:
        return get_model(name)
    path = Path(name or root)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json" and path.is_file():
        return model_from_config(json.loads(path.read_text(encoding="utf-8")), served_name)
    if name is not None:
        return get_model(name)
    raise ValueError(
        f"the server's model {root!r} has no config.json on this machine: give model=NAME "
        f"({', '.join(sorted(MODELS))}) or model=FOLDER with its config.json"
    )


def model_from_config(config: dict[str, Any], name: str) -> ModelSpec:
    """Sizes from the configuration of a decoder-only transformer as Hugging Face writes it.

    Args:
        config: content of `config.json`.
        name: what to call it.

    Raises:
        ValueError: a size is missing.
    """
    missing = [
        key
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
        if key not in config
    ]
    if missing:
        raise ValueError(f"config.json of {name} has no {missing[0]!r}")
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 0)
    inner = int(config.get("intermediate_size") or 0)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return ModelSpec(
        name=name,
        num_layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=0 if experts else inner,
        vocab=int(config["vocab_size"]),
        max_model_len=int(config.get("max_position_embeddings") or 0),
        num_experts=experts,
        experts_per_token=int(config.get("num_experts_per_tok") or 0),
        expert_intermediate=int(config.get("moe_intermediate_size") or inner) if experts else 0,
        weight_dtype_bytes=_DTYPE_BYTES.get(dtype, 2.0),
    )
