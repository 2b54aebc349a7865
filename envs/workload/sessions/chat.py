"""Chats: turns of a user who reads the answer before asking on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.workload.sessions.base import LogNormal, SessionTraffic, count_of, mean_of_counts
from serving_gym.envs.workload.sessions.tables import Context, SessionTable


@dataclass(frozen=True)
class ChatSessions(SessionTraffic):
    """Chats with a common system prompt.

    Figures are those of Kimi's production chat (Mooncake's conversation trace, FAST 2025, its first 30 minutes), where
    a request continues the last one whose whole blocks its prompt begins with: turns of the sessions that begin in the
    first ten minutes, and gaps, growth and lengths of all. Gaps are from arrival to arrival there; answers are taken to
    last 30 ms a token.

    Attributes:
        system_tokens: system prompt that all sessions share, tokens. Trace: one block of 512 is common to all.
        turns_median: median of the log-normal number that is rounded up to the turns of a session. Trace: 71 % have
            one, 1 % more than seven.
        turns_spread: its spread.
        first_median_tokens: median length of what the user says first, tokens. Trace: 6,637 with the system prompt.
        first_spread: standard deviation of its logarithm. Trace: 90 % are below 27,885.
        later_median_tokens: median length of what the user says later, tokens. Trace: 35.
        later_spread: standard deviation of its logarithm. Trace: 90 % are below 4,443.
        output_median_tokens: median length of an answer, tokens. Trace: 356.
        output_spread: standard deviation of its logarithm. Trace: 90 % are below 608.
        think_median_s: median time from the end of an answer to the next turn, seconds. Trace: 123 from arrival to
            arrival.
        think_spread: standard deviation of its logarithm. Trace: 90 % are below 432.
        context_tokens: longest prompt, tokens; a session ends before it would be exceeded. Source: ours.
        longest_output_tokens: longest answer, tokens. Source: ours.
    """

    name: str = "chat_sessions"
    system_tokens: int = 512
    turns_median: float = 0.545
    turns_spread: float = 1.098
    first_median_tokens: float = 6100.0
    first_spread: float = 1.12
    later_median_tokens: float = 35.0
    later_spread: float = 3.8
    output_median_tokens: float = 356.0
    output_spread: float = 0.418
    think_median_s: float = 112.0
    think_spread: float = 0.98
    context_tokens: int = 120_000
    longest_output_tokens: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(
            self,
            "turns_median",
            "first_median_tokens",
            "later_median_tokens",
            "output_median_tokens",
            finite=True,
        )
        check_not_negative(
            self, "turns_spread", "first_spread", "later_spread", "output_spread", "think_median_s", "think_spread",
            finite=True,
        )  # fmt: skip
        check_at_least(self, 1, "system_tokens", "longest_output_tokens")
        check_at_least(self, self.system_tokens + 1, "context_tokens")

    @property
    def provenance(self) -> str:
        """Where its figures come from."""
        return "synthetic chats; figures of Mooncake's conversation trace (kvcache-ai/Mooncake, FAST 2025)"

    @property
    def mean_requests(self) -> float:
        """Mean number of turns, of sessions that the context does not end."""
        return mean_of_counts(self.turns_spread, self.turns_median)

    def begin(self, table: SessionTable) -> Context:
        """The system prompt."""
        return table.text(self.system_tokens)

    def add_session(
        self, table: SessionTable, shared: object, number: int, begin_s: float, rng: np.random.Generator
    ) -> None:
        """Adds a chat."""
        assert isinstance(shared, Context)
        context = shared.branch(self.system_tokens, table.names)
        after: tuple[int, ...] = ()
        for turn in range(count_of(self.turns_spread, rng, self.turns_median)):
            said = LogNormal(self.later_median_tokens, self.later_spread)
            if turn == 0:
                said = LogNormal(self.first_median_tokens, self.first_spread)
            tokens = said.tokens(rng)
            if turn > 0 and context.tokens + tokens > self.context_tokens:
                return
            context.grow(min(tokens, self.context_tokens - context.tokens), table.names)
            output = LogNormal(self.output_median_tokens, self.output_spread, self.longest_output_tokens)
            delay_s = LogNormal(self.think_median_s, self.think_spread).draw(rng)
            after = (table.add(number, context, output.tokens(rng), begin_s, after, delay_s),)
