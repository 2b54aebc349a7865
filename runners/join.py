"""Joins several trainings of `agent=api` or `agent=portfolio` in one environment into one policy.

    python -m runners.join 'checkpoints=[runs/ten/*]' out=runs/together
    python -m runners.compare env=dp_tp policies=[static_4x2,runs/together]
    python -m runners.join checkpoints=[zoo/routing,runs/mine] weights=[1,3] out=runs/routers

With `epochs`, new networks are trained on the states that the trainings have stored. After short trainings this gives a
better policy than the ensemble of their networks:

    python -m runners.join 'checkpoints=[runs/ten/*]' epochs=20 networks=4 out=runs/together

Writes a checkpoint as `runners.train` does; `card.md` lists the joined checkpoints.
"""

from __future__ import annotations

import sys
from pathlib import Path

from serving_gym.agents.checkpoint import CHECKPOINT
from serving_gym.agents.learners.joining import join, learn_together
from serving_gym.runners.command_line.cli import command, use_one_thread
from serving_gym.runners.configuration.policies import is_pattern, members_of
from serving_gym.runners.configuration.schema import JoinConfig
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.tuning.tuned_file import typed_command


@command("join", JoinConfig)
def main(config: JoinConfig, out: Path) -> None:
    """Runs the command."""
    groups = [members_of(name) if is_pattern(name) else (name,) for name in config.checkpoints]
    checkpoints = [name for group in groups for name in group]
    if config.epochs is None:
        number = join(checkpoints, out / CHECKPOINT, config.weights, typed_command("join"))
        print(f"{number} networks of {len(checkpoints)} checkpoints joined into an ensemble.")
    else:
        use_one_thread()
        states = learn_together(
            checkpoints, out / CHECKPOINT, config.networks, config.epochs, config.seed, typed_command("join")
        )
        print(
            f"Networks that learned from {states:,} states of {len(checkpoints)} trainings: {config.networks}."
        )
    print_results_in(out)


if __name__ == "__main__":
    sys.exit(main(None))
