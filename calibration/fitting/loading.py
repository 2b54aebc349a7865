"""Where the storage bandwidths of `calibration.transitions` come from."""

import pandas as pd

from serving_gym.calibration.fitting.data import data_path

# Weights in 16 bits, bytes.
WEIGHT_BYTES = {
    "meta-llama/Llama-3.1-8B-Instruct": 16.06e9,
    "Qwen/Qwen3-32B": 65.52e9,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 65.53e9,
}
FORMATS = {"safetensors": "safetensors", "sllm": "serverlessllm"}


def fit_storage_bandwidth() -> dict[str, float]:
    """Bytes per second from NVMe to an H100 by format: least squares of time on bytes, through the origin.

    Source: `profiles/serverlessllm_model_load.csv`, distinct copies (scenario "random").
    """
    table = pd.read_csv(data_path("profiles/serverlessllm_model_load.csv"))
    table = table[(table.gpu == "h100_sxm") & (table.scenario == "random")]
    size = table.model.map(WEIGHT_BYTES)
    sums = pd.DataFrame({"xx": size**2, "xy": size * table.loading_time_s}).groupby(table["format"]).sum()
    return {FORMATS[str(name)]: float(row.xx / row.xy) for name, row in sums.iterrows()}
