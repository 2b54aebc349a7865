"""Where the shares of `calibration.power` come from."""

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from serving_gym.calibration.fitting.data import data_path

MODEL, OUTPUT_TOKENS, LONGEST_PROMPT = "llama2-70b", 128, 4096


def fit_power_shares() -> dict[int, tuple[float, float]]:
    """Prefill and decode power over the base of the measurements, by tensor-parallel degree.

    Source: `profiles/splitwise_perf_model.csv.gz`; rows without power are zero there and left out.
    """
    table = pd.read_csv(data_path("profiles/splitwise_perf_model.csv.gz"))
    table = table[(table.model == MODEL) & (table.token_size == OUTPUT_TOKENS)]
    table = table[(table.prompt_size <= LONGEST_PROMPT) & (table.average_power_rel > 0)]
    keys = ["tensor_parallel", "prompt_size", "batch_size"]
    means = table.groupby(keys)[["prompt_time_ms", "e2e_time_ms", "average_power_rel"]].mean().reset_index()
    return {int(str(degree)): _shares(runs) for degree, runs in means.groupby("tensor_parallel")}


def _shares(runs: pd.DataFrame) -> tuple[float, float]:
    prefill = (runs.prompt_time_ms / runs.e2e_time_ms).to_numpy()
    solution, _ = nnls(np.stack([prefill, 1.0 - prefill], axis=1), runs.average_power_rel.to_numpy())
    return float(solution[0]), float(solution[1])
