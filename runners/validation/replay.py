"""`runners.validate traffic=[RUN,...]`: recorded runs of a server, simulated again, with the errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.metrics import summarise
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.cluster import profile_of
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.configuration.schema import ValidateConfig
from serving_gym.runners.live.gap import pair
from serving_gym.runners.measuring.recorded_runs import read_summary, served_requests, server_of
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in, print_table

SHOWN = (
    "ttft_mean_finished_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_mean_finished_s",
    "e2e_mean_finished_s",
    "e2e_p99_s",
)
# Metrics without SLOs, as every run has its own SLOs.
COMPARED = (*SHOWN, "tpot_p50_s", "tpot_p99_s", "e2e_p50_s", "throughput_tokens_per_s")
_NO_PROMISE = SLO(ttft_s=1e6, tpot_s=1e6)

Figures = dict[str, dict[str, float]]


def validate_traffic(config: ValidateConfig, file: Path) -> None:
    """Simulates, compares, writes `file` and prints.

    Raises:
        ValueError: a folder is not a run on one server, or the engine cannot serve its requests.
    """
    cluster = config.cluster if config.profile is None else replace(config.cluster, profile=config.profile)
    profile = profile_of(cluster)
    runs = {name: figures_of(Path(name), cluster) for name in config.traffic}
    told = {"profile": cluster.profile or "committed", "model": profile.model.name, "gpu": profile.gpu.name}
    write_json(file, {**told, "front_end": cluster.base_width in profile.frontends, "runs": runs})
    columns = ("run", *SHOWN)
    live = [(Path(name).name, *(run[key]["live"] for key in SHOWN)) for name, run in runs.items()]
    errors = [
        (Path(name).name, *(f"{run[key]['error']:+.1%}" for key in SHOWN)) for name, run in runs.items()
    ]
    print_table("What the clients of the real server saw", columns, live)
    print_table(f"Error of simulation, {told['model']} on {told['gpu']}, {told['profile']}", columns, errors)
    if cluster.base_width not in profile.frontends:
        print("note: the profile knows no front end, so that first tokens come as soon as they are computed")
    print_results_in(file.parent)


def figures_of(folder: Path, cluster: ClusterSpec) -> Figures:
    """Figures of a run, simulated and live, with the error of the simulation.

    Args:
        folder: The run.
        cluster: Whose engine serves it in simulation, with the server's KV cache.

    Raises:
        ValueError: the folder is not a run on one server, or the engine cannot serve its requests.
    """
    live, cache, frame = read_summary(folder)["metrics"], server_of(folder)["cache"], served_requests(folder)
    engine = replace(
        cluster,
        num_gpus=cluster.base_width,
        max_group=None,
        router="round_robin",
        block_size=cache["block_size"],
        kv_blocks_override=cache["num_blocks"],
    )
    simulator = Simulator(engine, (_NO_PROMISE,))
    workload = Workload(
        arrival_s=(frame["arrival_s"] - frame["arrival_s"].min()).to_numpy(),
        input_tokens=frame["input_tokens"].to_numpy(),
        output_tokens=frame["output_tokens"].to_numpy(),
        name=folder.name,
    )
    simulator.reset(workload)
    simulator.run_to_completion()
    records = simulator.results()
    refused = len(records) - int(records.finished.sum())
    if refused:
        raise ValueError(
            f"{refused} of {len(records)} requests of {folder} do not fit the simulated engine, which has the server's "
            f"KV cache of {cache['num_blocks']} blocks of {cache['block_size']} tokens"
        )
    classes = workload.classes
    simulated = summarise(records, dict.fromkeys(classes, _NO_PROMISE), classes, records.last_event_s)
    return {name: pair(simulated[name], live[name]) for name in COMPARED}
