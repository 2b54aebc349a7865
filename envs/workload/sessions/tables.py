"""Builds a workload with sessions, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from serving_gym.envs.workload.ragged import offsets_of
from serving_gym.envs.workload.schema import Workload

BLOCK_TOKENS = 64  # tokens that a prefix id names


@dataclass
class Context:
    """What a session has said so far: a text that only grows.

    Attributes:
        tokens: its length.
        ids: ids of its blocks; the last one may be partly filled.
    """

    tokens: int
    ids: list[int]

    def grow(self, tokens: int, names: Iterator[int]) -> None:
        """Appends text of its own; `names` yields ids that nobody has."""
        self.tokens += tokens
        while len(self.ids) * BLOCK_TOKENS < self.tokens:
            self.ids.append(next(names))

    def branch(self, tokens: int, names: Iterator[int]) -> Context:
        """A text with the same first `tokens`, of which whole blocks are shared."""
        shared = Context(0, self.ids[: tokens // BLOCK_TOKENS])
        shared.grow(tokens, names)
        return shared


@dataclass
class SessionTable:
    """Requests of sessions in the making; those that are planned before time 0 are forgotten.

    Attributes:
        names: ids of prefix blocks that nobody has.
    """

    names: Iterator[int] = field(default_factory=count)
    arrival_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)

    def text(self, tokens: int) -> Context:
        """A text that contexts may branch from."""
        context = Context(0, [])
        context.grow(tokens, self.names)
        return context

    def add(
        self,
        session: int,
        context: Context,
        output_tokens: int,
        begin_s: float,
        after: tuple[int, ...] = (),
        delay_s: float = 0.0,
    ) -> int:
        """Adds a request whose prompt is the context, which its answer then becomes part of.

        Args:
            session: its session.
            context: its prompt.
            output_tokens: length of its answer.
            begin_s: when it arrives if it waits for no answer.
            after: numbers of the requests whose answers it waits for.
            delay_s: time from the last of them to its arrival.

        Returns:
            The number of the request.
        """
        begin_s = max(self.arrival_s[row] for row in after) + delay_s if after else begin_s
        self.arrival_s.append(begin_s)
        self.input_tokens.append(context.tokens)
        self.output_tokens.append(output_tokens)
        self.session.append(session)
        self.delay_s.append(delay_s if after else 0.0)
        self.after.append(after)
        context.grow(output_tokens, self.names)
        self.ids.append(context.ids.copy() if begin_s >= 0.0 else [])
        return len(self.arrival_s) - 1

    def workload(self, most: int, cap_tokens: int, name: str, provenance: str) -> Workload:
        """The first requests from time 0 on, in order of their earliest arrival.

        Sessions that are under way then go on: a request all of whose awaited answers are in the past waits for none.

        Args:
            most: requests at most.
            cap_tokens: the output cap that every request declares.
            name: what it is called.
            provenance: where its figures come from.
        """
        arrival_s = np.array(self.arrival_s)
        order = np.argsort(arrival_s, kind="stable")
        order = order[arrival_s[order] >= 0.0][:most]
        number = {int(row): place for place, row in enumerate(order)}
        after = [[number[other] for other in self.after[row] if other in number] for row in order]
        delay_s = np.array(self.delay_s)[order]
        delay_s[[not rows for rows in after]] = 0.0
        numbers: dict[int, int] = {}
        session = [numbers.setdefault(self.session[row], len(numbers)) for row in order]
        return Workload(
            arrival_s=arrival_s[order],
            input_tokens=np.array(self.input_tokens)[order],
            output_tokens=np.array(self.output_tokens)[order],
            max_output_tokens=np.full(len(order), cap_tokens, np.int32),
            session_id=np.array(session, np.int32),
            delay_s=delay_s,
            after_offsets=offsets_of([len(rows) for rows in after]),
            after=np.array([row for rows in after for row in rows], np.int32),
            hash_offsets=offsets_of([len(self.ids[row]) for row in order]),
            hash_ids=np.array([name for row in order for name in self.ids[row]], np.int32),
            hash_block_tokens=BLOCK_TOKENS,
            name=name,
            provenance=provenance,
        )
