"""Draws `layouts.png`: the engines of a node over an episode of `Serving/DPTP-v1` under a tuned threshold rule.

python docs/images/layouts.py
"""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

import serving_gym
from serving_gym.envs.dp_tp.render import group_rows
from serving_gym.envs.interface.metrics import RequestRecords

POLICIES = ("prompt_threshold_default_tuned", "static_4x2", "static_2x4", "static_dp")
WIDTHS = (1, 2, 4, 8)
BIN_S = 10.0


def play(policy_name: str) -> tuple[list[float], list[list[int]], list[float], RequestRecords]:
    """Times of decisions in seconds, width of each GPU's engine and return so far at each, and records of requests."""
    env = gym.make("Serving/DPTP-v1", split="test").unwrapped
    policy = serving_gym.load_policy(policy_name)
    observation, _ = env.reset(seed=0)
    policy.reset(env.policy_spec, 0)
    times_s, widths, returns, over = [], [], [0.0], False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation, env.state))
        returns.append(returns[-1] + float(reward))
        times_s.append(env.state.now_s)
        rows = group_rows(env.state, env.config.cluster.base_width)
        widths.append([group.length for group in rows for _ in group.members])
        over = terminated or truncated
    return times_s, widths, returns[1:], env.records()


def main() -> None:
    """Plays one episode with each policy and writes the picture beside this file."""
    played = {name: play(name) for name in POLICIES}
    times_s, widths, _, records = played[POLICIES[0]]
    edges = np.arange(0.0, times_s[-1] + BIN_S, BIN_S)
    figure = Figure(figsize=(9.5, 6), layout="constrained")
    rate, tokens, layout, total = figure.subplots(4, 1, sharex=True, height_ratios=(1, 1, 1.3, 1.3))
    rate.stairs(np.histogram(records.arrival_s, edges)[0] / BIN_S, edges, fill=True, color="#bbbbbb")
    rate.set_ylabel("requests/s")
    rate.set_title("Serving/DPTP-v1: one episode, eight GPUs", fontsize=10)
    arrived = np.histogram(records.arrival_s, edges, weights=records.input_tokens)[0] / BIN_S / 1e3
    tokens.stairs(arrived, edges, fill=True, color="#d8b98a")
    tokens.set_ylabel("prompt\n1000 tokens/s")
    colours = ListedColormap(["#dceaf7", "#8fbce6", "#3f7fbf", "#14426f"])
    mesh = layout.pcolormesh(
        [0.0, *times_s],
        np.arange(9),
        np.array(widths).T,
        cmap=colours,
        norm=BoundaryNorm([0, 1.5, 3, 6, 9], 4),
    )
    layout.set(ylabel="GPU", yticks=np.arange(8) + 0.5, yticklabels=range(8))
    bar = figure.colorbar(mesh, ax=layout, ticks=[0.75, 2.25, 4.5, 7.5], pad=0.01)
    bar.ax.set_yticklabels([f"TP {width}" for width in WIDTHS], fontsize=8)
    for name, (ends_s, _, returns, _) in played.items():
        total.plot(ends_s, returns, label=name, linewidth=1.5)
    total.set(ylabel="return so far", xlabel="time, s")
    total.legend(fontsize=7, loc="lower left")
    figure.savefig(Path(__file__).with_name("layouts.png"), dpi=100)


if __name__ == "__main__":
    main()
