"""Coding agents: long loops of steps between tools, with a context that grows until it is compacted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.workload.sessions.base import LogNormal, SessionTraffic, count_of, mean_of_counts
from serving_gym.envs.workload.sessions.tables import Context, SessionTable


@dataclass(frozen=True)
class _Shared:
    """Prompts that all sessions begin with: that of the agent and that of its sub-agents."""

    agent: Context
    sub_agent: Context


@dataclass(frozen=True)
class CodingSessions(SessionTraffic):
    """Sessions of coding agents. A user's request is a loop of steps; each waits for a tool, the first for the user.

    Figures are those of TraceLab, 351,029 steps of 4,156 sessions of Claude Code and Codex (uw-syfi/TraceLab,
    summary.json and session_timing_distribution.tex), where no other source is named.

    Attributes:
        shared_tokens: tools and system prompt that all sessions share, tokens. Source: Weka's traces of Claude Code
            (semianalysisai/cc-traces-weka-042026), 12,400 to 13,000 of tools and about 3,000 of system prompt.
        requests_spread: spread of the log-normal number, of median 1, that is rounded up to the requests of a session.
            TraceLab: half of the sessions have one request; ten on average.
        most_requests: most requests of a session. Source: ours, so that sessions end within hours.
        mean_steps: mean of the geometric number of steps of a request. TraceLab: 8.4.
        append_median_tokens: median growth of the context from step to step beside the answer, tokens. TraceLab: 652
            after a tool, 587 after the user, with the answer.
        append_spread: standard deviation of its logarithm. TraceLab: mean 1,738, 90 % below 4,122.
        output_median_tokens: median length of an answer, tokens. TraceLab gives the mean, 520.
        output_spread: standard deviation of its logarithm. Source: ours, with the median.
        tool_median_s: median time that a tool takes, seconds. TraceLab: 0.3.
        tool_spread: standard deviation of its logarithm. TraceLab: 90 % below 13.6 s, 99 % below 216.
        human_median_s: median time that a user takes, seconds. TraceLab: 135.
        human_spread: standard deviation of its logarithm. TraceLab: 90 % below 1,610 s.
        longest_wait_s: longer waits for a tool or a user are cut to it, seconds. Source: TraceLab's cap of one hour.
        sub_agent_share: share of steps that start sub-agents, which the next step waits for. Source: ours.
        sub_agents: sub-agents of such a step. Source: ours.
        sub_agent_steps: mean of the geometric number of their steps. Source: ours.
        sub_agent_tokens: system prompt that all sub-agents share, tokens. Source: ours.
        context_tokens: prompt beyond which the context is compacted, tokens. Source: ours, below a context of 131,072;
            TraceLab's models have 200,000 and more.
        compacted_tokens: length of the summary that stands behind the shared prompt then, tokens. Source: ours.
        longest_output_tokens: longest answer, tokens. Source: ours.
    """

    name: str = "agentic_coding"
    history_s: float = 14_400.0
    shared_tokens: int = 15_700
    requests_spread: float = 2.1
    most_requests: int = 60
    mean_steps: float = 8.4
    append_median_tokens: float = 450.0
    append_spread: float = 1.4
    output_median_tokens: float = 250.0
    output_spread: float = 1.21
    tool_median_s: float = 0.3
    tool_spread: float = 2.98
    human_median_s: float = 135.0
    human_spread: float = 1.94
    longest_wait_s: float = 3600.0
    sub_agent_share: float = 0.01
    sub_agents: int = 3
    sub_agent_steps: float = 6.0
    sub_agent_tokens: int = 8_000
    context_tokens: int = 100_000
    compacted_tokens: int = 8_000
    longest_output_tokens: int = 8_192

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "append_median_tokens", "output_median_tokens", "longest_wait_s", finite=True)
        check_not_negative(
            self, "requests_spread", "append_spread", "output_spread", "tool_median_s", "tool_spread", "human_median_s",
            "human_spread", finite=True,
        )  # fmt: skip
        check_at_least(
            self,
            1,
            "shared_tokens",
            "mean_steps",
            "most_requests",
            "sub_agents",
            "sub_agent_steps",
            "sub_agent_tokens",
        )
        check_at_least(self, 1, "compacted_tokens", "longest_output_tokens")
        check_within(self, "[0, 1]", "sub_agent_share")
        least = self.shared_tokens + self.compacted_tokens + self.longest_output_tokens
        check_at_least(self, max(least, self.sub_agent_tokens) + 1, "context_tokens")

    @property
    def provenance(self) -> str:
        """Where its figures come from."""
        return "synthetic coding sessions; figures of TraceLab (uw-syfi/TraceLab, arXiv 2606.30560) and Weka"

    @property
    def mean_requests(self) -> float:
        """Mean number of steps of a session, those of sub-agents among them."""
        of_sub_agents = self.sub_agent_share * self.sub_agents * self.sub_agent_steps
        return (
            mean_of_counts(self.requests_spread, most=self.most_requests)
            * self.mean_steps
            * (1.0 + of_sub_agents)
        )

    def begin(self, table: SessionTable) -> _Shared:
        """What all prompts begin with."""
        return _Shared(table.text(self.shared_tokens), table.text(self.sub_agent_tokens))

    def add_session(
        self, table: SessionTable, shared: object, number: int, begin_s: float, rng: np.random.Generator
    ) -> None:
        """Adds the requests of one session and their steps."""
        assert isinstance(shared, _Shared)
        context = shared.agent.branch(self.shared_tokens, table.names)
        after: tuple[int, ...] = ()
        for _ in range(count_of(self.requests_spread, rng, most=self.most_requests)):
            waits = LogNormal(self.human_median_s, self.human_spread, self.longest_wait_s)
            for _ in range(int(rng.geometric(1.0 / self.mean_steps))):
                context = self._grown(table, context, shared.agent, rng)
                row = table.add(number, context, self._output(rng), begin_s, after, waits.draw(rng))
                after = (row,)
                waits = LogNormal(self.tool_median_s, self.tool_spread, self.longest_wait_s)
                if rng.random() < self.sub_agent_share:
                    after = tuple(
                        self._sub_agent(table, shared.sub_agent, number, row, rng)
                        for _ in range(self.sub_agents)
                    )

    def _sub_agent(
        self, table: SessionTable, shared: Context, number: int, parent: int, rng: np.random.Generator
    ) -> int:
        """Adds the steps of a sub-agent; returns the last one."""
        context = shared.branch(self.sub_agent_tokens, table.names)
        waits, row = LogNormal(0.0, 0.0), parent
        for _ in range(int(rng.geometric(1.0 / self.sub_agent_steps))):
            context = self._grown(table, context, shared, rng)
            row = table.add(number, context, self._output(rng), 0.0, (row,), waits.draw(rng))
            waits = LogNormal(self.tool_median_s, self.tool_spread, self.longest_wait_s)
        return row

    def _grown(
        self, table: SessionTable, context: Context, shared: Context, rng: np.random.Generator
    ) -> Context:
        """The context with what a tool or the user has said, compacted where that would be too long."""
        said = LogNormal(self.append_median_tokens, self.append_spread).tokens(rng)
        if context.tokens + said > self.context_tokens:
            prefix = min(self.shared_tokens, shared.tokens)
            context = shared.branch(prefix, table.names)
            said = self.compacted_tokens
        context.grow(said, table.names)
        return context

    def _output(self, rng: np.random.Generator) -> int:
        return LogNormal(self.output_median_tokens, self.output_spread, self.longest_output_tokens).tokens(
            rng
        )
