"""Scores latency predictions against measurements of real engines.

    python -m runners.validate data=measurements.csv
    python -m runners.validate data=measurements.csv profile=my_profile.yaml
    python -m runners.validate traffic=[runs/a,runs/b] cluster=NAME profile=my_profile.yaml

The file has the columns of one of the reference tables (`silicon/aic_e2e_vllm_agg`, `silicon/blis_vllm_stage_latency`,
`silicon/apex_vllm_dp_tp_h100`, `profiles/splitwise_perf_model`), which identify its format. Serving runs are predicted
by the simulator, single iterations by the latency model. Only committed files of `calibration` are read.

Writes `validation.json`: errors of each target as fractions, overall and by model, GPU, width and split (`seen`:
coefficients were fitted to this deployment; `unseen`: to related deployments, or to none); rows that could not be
predicted are counted with the reason. Errors are also given by load: below 70 %, 70 to 95 %, and saturated, and each
row says its own. Load is demand over what the engine can take: of an open loop its arrival rate over the rate at which
the engine finishes requests with all its sequences in use, of a closed loop its clients over the sequences that fit
(`max_num_seqs`, or the KV cache). For `traffic`, recorded runs of a server (`runners.simulate backend=vllm`), the
same requests are simulated on one engine of the cluster, and `validation.json` has each metric on both backends, as
clients measure it.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.profile import Profile, named_profile
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.schema import ValidateConfig
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.validation.forms import Measurements, read_measurements, read_table
from serving_gym.runners.validation.replay import validate_traffic
from serving_gym.runners.validation.score import ORDERING, Lookup, report, score_all

FILE_NAME = "validation.json"
_COLUMNS = ("n", "ape_median", "ape_mean", "ape_p90", "rank_correlation")


@command("validate", ValidateConfig)
def main(config: ValidateConfig, out: Path) -> None:
    """Runs the command."""
    if config.data is None:
        validate_traffic(config, out / FILE_NAME)
        return
    found = read_measurements(read_table(Path(config.data)))
    lookup = find_profile if config.profile is None else only(named_profile(config.profile))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = validation(config.data, config.profile, found, lookup)
    write_json(out / FILE_NAME, result)
    print_validation(config.data, found.form, result)
    if not result["overall"]:
        why = "; ".join(result["unsupported"]) or "it has no rows"
        raise ValueError(f"nothing in data={config.data!r} could be predicted: {why}")
    for message in sorted({str(entry.message) for entry in said if entry.category is UserWarning}):
        print(f"note: {message}")
    print_results_in(out)


def validation(data: str, profile: str | None, found: Measurements, lookup: Lookup) -> dict[str, Any]:
    """The content of `validation.json`."""
    total = sum(len(run.stages) for run in found.runs) + len(found.steps)
    with progress_bar(total, "validate", "row") as bar:
        scores, unsupported = score_all(found, lookup, bar.update)
    return report(data, profile or "committed", scores, unsupported)


def only(profile: Profile) -> Lookup:
    """Restricts the prediction to the deployments of one profile."""

    def lookup(deployment: Deployment) -> tuple[Profile, Frontend]:
        if (deployment.model, deployment.gpu) != (profile.model.name, profile.gpu.name):
            raise ValueError(f"profile is of {profile.model.name} on {profile.gpu.name}")
        profile.latency_model(deployment.tp)  # refuses a width that the profile lacks
        return profile, profile.frontends.get(deployment.tp, Frontend())

    return lookup


def print_validation(data: str, form: str, result: dict[str, Any]) -> None:
    """Prints one line per target, and one for each part of it."""
    rows = []
    for target, figures in result["overall"].items():
        if target == ORDERING:
            continue
        rows.append((target, *(figures.get(name) for name in _COLUMNS)))
        rows += [
            (f"  {part}", *(values.get(name) for name in _COLUMNS))
            for part, values in figures["parts"].items()
        ]
    print_table(f"{data} ({form}): predicted against measured", ("target", *_COLUMNS), rows)
    order = result["overall"].get(ORDERING)
    if order:
        print(f"order of layouts by time per token kept in {order['kept']} of {order['n']} comparisons")
    for reason, count in result["unsupported"].items():
        print(f"{count} rows not predicted: {reason}")


if __name__ == "__main__":
    sys.exit(main(None))
