"""One policy of several trainings of `agent=api` or `agent=portfolio` in one environment: they decide together.

    python -m runners.join 'checkpoints=[runs/ten/*]' out=runs/together
    python -m runners.compare env=dp_tp policies=[static_4x2,runs/together]
    python -m runners.join checkpoints=[zoo/routing,runs/mine] weights=[1,3] out=runs/routers

Writes a checkpoint as `runners.train` does; `card.md` says which were joined.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agents.joining import join
from runners.cli import command
from runners.policies import is_pattern, members_of
from runners.schema import JoinConfig
from runners.tables import print_results_in
from runners.train_config import CHECKPOINT


@command("join", JoinConfig)
def main(config: JoinConfig, out: Path) -> None:
    """Joins and writes."""
    groups = [members_of(name) if is_pattern(name) else (name,) for name in config.checkpoints]
    checkpoints = [name for group in groups for name in group]
    number = join(checkpoints, out / CHECKPOINT, config.weights)
    print(f"{number} networks of {len(checkpoints)} checkpoints decide together.")
    print_results_in(out)


if __name__ == "__main__":
    sys.exit(main(None))
