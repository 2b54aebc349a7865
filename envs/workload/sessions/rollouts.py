"""Rollouts of reinforcement learning: batches of agents' trajectories, each batch after the one before has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.sessions.base import LogNormal, SessionTraffic
from serving_gym.envs.workload.sessions.tables import Context, SessionTable


@dataclass(frozen=True)
class RolloutBatches(SessionTraffic):
    """Batches of trajectories, as trainers with synchronous batches (GRPO and its kin) ask for them.

    A batch has several prompts and a group of trajectories for each, which share the prompt. A trajectory is a loop of
    turns between tools. A batch is one session: its time is that of its slowest trajectory, and the next one begins
    an update after it: the load is what the cluster can serve.

    Attributes:
        prompts: prompts of a batch. Source: ours, small enough for a few engines.
        group: trajectories of a prompt. Source: 8 to 16 are usual (DeepSeekMath's GRPO: 64).
        mean_turns: mean of the geometric number of turns of a trajectory. Source: ours; published agents of
            SWE-bench take 25 to 40.
        most_turns: longest trajectory, turns. Source: Golubev et al., arXiv 2508.03501, 40 turns in their first stage.
        prompt_median_tokens: median length of a prompt, tokens. Source: ours.
        prompt_spread: standard deviation of its logarithm. Source: ours.
        system_tokens: system prompt that all trajectories share, tokens. Source: ours.
        append_median_tokens: median length of a tool's result, tokens. Source: TraceLab, as for coding agents.
        append_spread: standard deviation of its logarithm. Source: TraceLab.
        output_median_tokens: median length of a turn's answer, tokens. Source: TraceLab's mean of 520.
        output_spread: standard deviation of its logarithm. Source: ours: the tail that rollouts are known for.
        tool_median_s: median time that a tool takes, seconds. Source: TraceLab.
        tool_spread: standard deviation of its logarithm. Source: TraceLab.
        longest_tool_s: longer ones are ended, seconds. Source: ours.
        update_s: time from the end of a batch to the beginning of the next, seconds. Source: ours.
        context_tokens: longest prompt, tokens; a trajectory ends before it would be exceeded. Source: Golubev et al.,
            65,000 in their first stage.
        longest_output_tokens: longest answer, tokens. Source: ours.
    """

    unused: ClassVar[tuple[str, ...]] = ("arrival_rate_rps", "history_s", "patience_s")
    name: str = "rl_rollouts"
    prompts: int = 8
    group: int = 8
    mean_turns: float = 12.0
    most_turns: int = 40
    prompt_median_tokens: float = 1500.0
    prompt_spread: float = 0.6
    system_tokens: int = 2000
    append_median_tokens: float = 450.0
    append_spread: float = 1.4
    output_median_tokens: float = 250.0
    output_spread: float = 1.21
    tool_median_s: float = 0.3
    tool_spread: float = 2.0
    longest_tool_s: float = 60.0
    update_s: float = 30.0
    context_tokens: int = 65_000
    longest_output_tokens: int = 8_192
    history_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "prompts", "group", "mean_turns", "most_turns", "system_tokens")
        check_positive(
            self, "prompt_median_tokens", "append_median_tokens", "output_median_tokens", finite=True
        )
        check_not_negative(
            self, "prompt_spread", "append_spread", "output_spread", "tool_median_s", "tool_spread", "update_s",
            finite=True,
        )  # fmt: skip
        check_positive(self, "longest_tool_s", finite=True)
        check_at_least(self, 1, "longest_output_tokens")
        check_at_least(self, self.system_tokens + 1, "context_tokens")

    @property
    def provenance(self) -> str:
        """Where its figures come from."""
        return "synthetic rollouts; lengths and tools of TraceLab (uw-syfi/TraceLab, arXiv 2606.30560), sizes ours"

    @property
    def mean_requests(self) -> float:
        """Mean number of turns of a batch, of trajectories that the context does not end."""
        going_on = 1.0 - 1.0 / self.mean_turns
        return self.prompts * self.group * self.mean_turns * (1.0 - going_on**self.most_turns)

    def begin(self, table: SessionTable) -> Context:
        """The system prompt."""
        return table.text(self.system_tokens)

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload; a longer one drawn from the same stream begins with the shorter one."""
        table = SessionTable()
        shared = self.begin(table)
        number, after = 0, tuple[int, ...]()
        while len(table.arrival_s) < num_requests or number == 0:
            after = self._batch(table, shared, number, after, rng)
            number += 1
        return table.workload(num_requests, self.max_output_tokens, self.name, self.provenance)

    def add_session(
        self, table: SessionTable, shared: object, number: int, begin_s: float, rng: np.random.Generator
    ) -> None:
        """Adds one batch that waits for none."""
        assert isinstance(shared, Context)
        self._batch(table, shared, number, (), rng)

    def _batch(
        self,
        table: SessionTable,
        shared: Context,
        number: int,
        after: tuple[int, ...],
        rng: np.random.Generator,
    ) -> tuple[int, ...]:
        """Adds a batch after the last turns of the one before; returns its own last turns."""
        said = LogNormal(
            self.prompt_median_tokens, self.prompt_spread, self.context_tokens - self.system_tokens
        )
        last = []
        for _ in range(self.prompts):
            prompt = shared.branch(self.system_tokens, table.names)
            prompt.grow(said.tokens(rng), table.names)
            last += [self._trajectory(table, prompt, number, after, rng) for _ in range(self.group)]
        return tuple(last)

    def _trajectory(
        self,
        table: SessionTable,
        prompt: Context,
        number: int,
        after: tuple[int, ...],
        rng: np.random.Generator,
    ) -> int:
        """Adds the turns of a trajectory; returns the last one."""
        context = prompt.branch(prompt.tokens, table.names)
        delay_s, row = self.update_s, -1
        for _ in range(min(int(rng.geometric(1.0 / self.mean_turns)), self.most_turns)):
            if row >= 0:
                said = LogNormal(self.append_median_tokens, self.append_spread).tokens(rng)
                if context.tokens + said > self.context_tokens:
                    break
                context.grow(said, table.names)
                delay_s = LogNormal(self.tool_median_s, self.tool_spread, self.longest_tool_s).draw(rng)
            output = LogNormal(self.output_median_tokens, self.output_spread, self.longest_output_tokens)
            row = table.add(number, context, output.tokens(rng), 0.0, after, delay_s)
            after = (row,)
        return row
