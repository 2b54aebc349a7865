"""Animates an episode under one to three policies, side by side on the same arrivals.

    python -m runners.animate env=dp_tp 'policies=[static_4x2,zoo/dp_tp_sequence]'
    python -m runners.animate env=routing 'policies=[round_robin,zoo/routing]' from_s=0 to_s=30 out=runs/film
    python -m runners.animate env=autoscaling experiment=autoscaling_day 'policies=[hpa_kv,zoo/autoscaling]'

Writes `animation.gif`, whose pictures are those of `render_mode="rgb_array"` at even times of the simulation: the
cluster with batches, queues and KV, the last decision marked, over arrivals and latency so far.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.animate_config import AnimateConfig
from serving_gym.runners.configuration.policies import check_spaces, load_policy
from serving_gym.runners.reporting.film import Filmed, Pixels, side_by_side, with_name, write_gif
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.rollouts.rollout import Episode, run_episode

GIF = "animation.gif"
_METRICS = ("return", "slo_attainment", "ttft_p99_s", "tpot_p50_s")


@command("animate", AnimateConfig)
def main(config: AnimateConfig, out: Path) -> None:
    """Runs the command."""
    say_traces(config.workload, config.cluster)
    policies = {name: load_policy(name, config.env["name"]) for name in config.shown}
    films, episodes = [], []
    with progress_bar(len(policies), "animate", "episode") as bar:
        for name, policy in policies.items():
            env = config.environment.make(render_mode="rgb_array")
            core: Any = env.unwrapped
            core.renderer.scale = config.scale
            check_spaces(policy, env)
            filmed = Filmed(env, config.num_frames, config.from_s, config.to_s)
            episodes.append(run_episode(filmed, policy, config.seed, name))
            films.append([with_name(picture, name, config.scale) for picture in filmed.pictures])
            bar.update()
    written = _write(out / GIF, films, config)
    _print(config, episodes)
    size_mb = (out / GIF).stat().st_size / 1e6
    print(f"{written} pictures, {size_mb:.2f} MB, in {out / GIF}")
    print_results_in(out)


def _write(path: Path, films: list[list[Pixels]], config: AnimateConfig) -> int:
    """Writes the films side by side; returns the number of pictures."""
    pictures = [side_by_side(row) for row in zip(*films, strict=True)]
    return write_gif(path, pictures, config.fps, config.max_mb * 1e6)


def _print(config: AnimateConfig, episodes: list[Episode]) -> None:
    rows = [[episode.policy, *(episode.metrics[name] for name in _METRICS)] for episode in episodes]
    title = f"{config.env['name']} on {config.workload.name}, {config.split} split, seed {config.seed}"
    print_table(title, ["policy", *_METRICS], rows)


if __name__ == "__main__":
    sys.exit(main(None))
