"""How much better placement on shared nodes could be: a look-ahead that knows the future, beside policies that do not.

    python -m runners.reproduction.sharing_headroom [models=64] [minutes=4] [seeds=2] [base=place_score_tuned]

At each placement the look-ahead forks the simulator once for every possible action, lets a base policy
decide about the arrivals that really come, with the answers as long as they really are, and takes the best action. With
the whole episode as its horizon (the default) it is never worse than its base; with `horizon` arrivals it may be. It is
a lower bound of what could be reached: what it can choose is the environment's action space, whose memory manager it
cannot steer, and after each first action it does as the base policy does.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import BatchPolicy
from serving_gym.envs.base.placement import Observations
from serving_gym.envs.sharing.batch import SharingBatch
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.runners.configuration.make import environment_of
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_table
from serving_gym.runners.rollouts.rollout import run_episode

_WORDS: dict[str, Any] = {
    "models": 64,
    "minutes": 4,
    "seeds": 2,
    "first_seed": 0,
    "horizon": 1_000_000,
    "base": "place_score_tuned",
    "policies": "first_fit_tuned,place_score_tuned,llm_mesh_tuned",
}


def look_ahead_return(config: SharingConfig, base: BatchPolicy, seed: int, horizon: int) -> float:
    """Return of an episode in which every placement is the best by rollouts on the true future.

    Args:
        config: What the environment is made of.
        base: What decides inside the rollouts.
        seed: Of the episode.
        horizon: Arrivals that a rollout looks ahead.
    """
    world = SharingBatch([SharingEpisode(config)])
    seen = world.reset([0], [seed])
    total = 0.0
    while not world.done[0]:
        actions = np.flatnonzero(seen.masks[0])
        chosen = actions[0]
        if len(actions) > 1:
            chosen = actions[_rollouts(world, base, actions, horizon).argmax()]
        seen, outcomes = world.step(np.array([chosen]))
        total += outcomes[0].reward if outcomes[0] else 0.0
    return total


def _rollouts(
    world: SharingBatch, base: BatchPolicy, actions: NDArray[np.int64], horizon: int
) -> NDArray[np.float64]:
    """(A,), returns of each action and the base policy after it, up to the same instant."""
    simulator = world.episodes[0].simulator
    last = int(simulator.world.clock["next_arrival"][0]) - 1 + horizon
    arrivals = simulator.workload.arrival_s
    until_s = float(arrivals[last]) if last < len(arrivals) else np.inf
    forks = world.branch([0] * len(actions))
    return forks.returns_until(actions, np.full(len(actions), until_s), lambda seen, _: _decided(base, seen))


def _decided(base: BatchPolicy, seen: Observations) -> NDArray[np.int64]:
    observation = {"places": seen.places, "request": seen.request, "cluster": seen.cluster}
    return base.act_batch(observation, seen.masks)


def main(words: list[str]) -> int:
    """Measures and prints."""
    values = dict(_WORDS)
    for word in words:
        key, _, value = word.partition("=")
        if key not in values:
            print(f"error: unknown word {key!r}; known: {', '.join(values)}", file=sys.stderr)
            return 2
        values[key] = type(values[key])(value)
    params = {"num_models": values["models"], "minutes": values["minutes"]}
    changes: dict[str, Any] = {f"workload.params.{key}": value for key, value in params.items()}
    environment = environment_of("sharing", {"workload": "functions_fitted", "split": "test", **changes})
    config, env = environment.settings, environment.make()
    names, base = values["policies"].split(","), load_policy(values["base"])
    if not isinstance(base, BatchPolicy):
        print(f"error: base must decide by the observation alone, got {values['base']!r}", file=sys.stderr)
        return 2
    rows: list[tuple[Any, ...]] = []
    with progress_bar(values["seeds"], "look ahead", "episode") as bar:
        for seed in range(values["first_seed"], values["first_seed"] + values["seeds"]):
            returns = [run_episode(env, load_policy(name), seed).metrics["return"] for name in names]
            rows.append((seed, *returns, look_ahead_return(config, base, seed, values["horizon"])))
            bar.update()
    title = f"Returns, {values['models']} models, {values['minutes']} minutes"
    print_table(title, ("seed", *names, "look-ahead"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
