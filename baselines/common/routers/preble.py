"""AIBrix's `prefix-cache-preble`: long prefixes stay together, others go where the last minutes cost least."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.common.routers.prefix_index import Node, PrefixTree
from serving_gym.baselines.policy import Action, Configured, Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

COSTS = ("v100", "engines")
NEVER = 1e4  # `imbalance` from which costs never lie apart
_PRUNE_EVERY = 256  # prompts


@dataclass(frozen=True)
class PrebleConfig(Constants):
    """Constants of `PreblePolicy`; sources: AIBrix' gateway, `prefix_cache_preble.go`.

    Attributes:
        match_threshold: Share of a prompt that must have been seen before for its prefix to decide. AIBrix (0.5).
        window_s: How long a request counts, seconds. `AIBRIX_ROUTER_PREBLE_SLIDING_WINDOW_PERIOD` (3 min).
        decode_tokens: Answer that a prompt is thought to have. `AIBRIX_ROUTER_PREBLE_DECODING_LENGTH` (45).
        token_s: Time of one of its tokens, seconds. AIBrix (0.15; it has a median of measured times, which nothing
            fills).
        imbalance: Highest cost over lowest from which a prefix no longer keeps its requests. Preble moves them then
            (section 3.2); AIBrix never does, 1e4.
        cost: "v100": prefill times of Mistral-7B on a V100, and each node's answer once, as AIBrix computes
            (`AIBRIX_ROUTER_PREBLE_TARGET_GPU`); "engines": nominal times of each engine, and every request's answer,
            as Preble (arXiv 2407.00023) means it.
    """

    match_threshold: float = tunable(0.5, 0.0, 0.99)
    window_s: float = tunable(180.0, 5.0, 600.0, log=True)
    decode_tokens: float = tunable(45.0, 1.0, 1000.0, log=True)
    token_s: float = 0.15
    imbalance: float = tunable(NEVER, 1.05, NEVER, log=True)
    cost: str = tunable_choice("v100", "engines")

    def __post_init__(self) -> None:
        check_within(self, "[0, 1]", "match_threshold")
        check_positive(self, "window_s")
        check_not_negative(self, "decode_tokens", "token_s")
        check_choice("cost", self.cost, COSTS)
        if not self.imbalance > 1:
            raise ValueError(f"imbalance must be above 1, got {self.imbalance}")


@dataclass(eq=False)
class _Tally:
    """What the window holds of a node of the tree.

    Attributes:
        holders: (P,) places that had its prompt; of a node the node's own array.
        tokens: Tokens of its edge.
        context: Tokens from the root to its end.
        count: Requests whose prompts end there.
        hit_tokens: Their tokens before the edge.
        prompt_tokens: Their tokens.
        cost: (P,) what it adds to the costs of places now.
        load: (P,) what it adds to their requests.
    """

    holders: NDArray[np.bool_]
    tokens: int
    context: int
    cost: NDArray[np.float64]
    load: NDArray[np.int64]
    count: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0


@dataclass(eq=False)
class _Entry:
    """A request of the window: its time, its tally and the lengths that it added there."""

    at_s: float
    node: Node | None
    tally: _Tally
    hit_tokens: int
    prompt_tokens: int


class PreblePolicy(Router, Configured[PrebleConfig]):
    """The longest prefix if it is long, else the lowest cost of the last minutes.

    AIBrix (main, `pkg/plugins/gateway/algorithms/prefix_cache_preble.go`), after Preble (arXiv 2407.00023). Prompts are
    kept in a radix tree whose nodes know which engines had them.

    * More than `match_threshold` of the prompt is in the tree: of the engines that had its longest prefix, the one with
      the fewest requests in the window, those counted whose last node the engine had.
    * Where it is not so, or with costs apart by `imbalance`, the engine with the lowest cost: over the nodes in the
      window that it had, miss rate x requests x prefill time / engines that had it, plus the time of an answer.

    Departures: a prompt's ids are the workload's blocks, and what is shorter than a block does not count; a prompt that
    shares nothing is a node of its own; the tree forgets by the engines' KV capacity, as AIBrix's indexer forgets by
    age.
    """

    name = "preble"

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        places = len(self.engines)
        self._tree = PrefixTree(places)
        self._window: deque[_Entry] = deque()
        self._tallies: dict[Node, _Tally] = {}
        self._cost, self._load = np.zeros(places), np.zeros(places, np.int64)
        self._sent = 0

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The engine, which the window then counts the request for."""
        self._forget(state.now_s - self.config.window_s)
        ids = request.hash_ids
        matched = self._tree.match(ids) if len(ids) else np.zeros(len(self.engines), np.int64)
        longest = int(matched.max())
        place = -1
        if len(ids) and longest > self.config.match_threshold * len(ids) and self._balanced(state.can_take):
            had = state.can_take & (matched == matched[state.can_take].max())
            if matched[had].any():
                place = lowest(self._load, had)
        if place < 0:
            place = lowest(self._cost, state.can_take)
        self._count(state.now_s, request, place)
        return place

    def _balanced(self, can_take: NDArray[np.bool_]) -> bool:
        """Whether no engine's cost is `imbalance` times another's."""
        costs, imbalance = self._cost[can_take], self.config.imbalance
        return (
            imbalance >= NEVER
            or float(costs.max()) <= imbalance * float(costs.min())
            or np.isinf(self.config.imbalance)
        )

    def _count(self, now_s: float, request: RoutedRequest, place: int) -> None:
        """Counts a request for the place that it goes to."""
        block, node = request.hash_block_tokens, None
        if len(request.hash_ids):
            node = self._tree.insert(request.hash_ids, place)
            self._follow(node, block)
            tally = self._tally_of(node, block)
        else:
            holders = np.zeros(len(self.engines), bool)
            holders[place] = True
            tally = self._new(holders, request.input_tokens, request.input_tokens)
        hit = tally.context - tally.tokens
        tally.count += 1
        tally.hit_tokens += hit
        tally.prompt_tokens += tally.context
        self._window.append(_Entry(now_s, node, tally, hit, tally.context))
        self._reckon(tally)
        self._sent += 1
        if node is not None and self._sent % _PRUNE_EVERY == 0:
            self._tree.prune(int(self.engines.kv_capacity_tokens.max()) // block)
            for each in self._tallies.values():
                self._reckon(each)

    def _follow(self, node: Node, block: int) -> None:
        """Brings tallies up to date where a prompt has changed the tree: holders on its path, a split edge."""
        for changed in (self._tree.parted, *_path(node)):
            tally = None if changed is None else self._tallies.get(changed)
            if changed is not None and tally is not None:
                tally.tokens = len(changed.ids) * block
                self._reckon(tally)

    def _tally_of(self, node: Node, block: int) -> _Tally:
        if node not in self._tallies:
            context = sum(len(above.ids) for above in _path(node)) * block
            self._tallies[node] = self._new(node.holders, len(node.ids) * block, context)
        return self._tallies[node]

    def _new(self, holders: NDArray[np.bool_], tokens: int, context: int) -> _Tally:
        places = len(self.engines)
        return _Tally(holders, tokens, context, np.zeros(places), np.zeros(places, np.int64))

    def _forget(self, before_s: float) -> None:
        """Drops requests that have left the window."""
        while self._window and self._window[0].at_s <= before_s:
            entry = self._window.popleft()
            tally = entry.tally
            tally.count -= 1
            tally.hit_tokens -= entry.hit_tokens
            tally.prompt_tokens -= entry.prompt_tokens
            self._reckon(tally)
            if not tally.count and entry.node is not None:
                self._tallies.pop(entry.node, None)

    def _reckon(self, tally: _Tally) -> None:
        """Computes what a tally adds to costs and requests of places anew."""
        self._cost -= tally.cost
        self._load -= tally.load
        tally.load = np.where(tally.holders, tally.count, 0)
        tally.cost = self._cost_of(tally) if tally.count else np.zeros(len(self.engines))
        self._cost += tally.cost
        self._load += tally.load

    def _cost_of(self, tally: _Tally) -> NDArray[np.float64]:
        config, engines = self.config, self.engines
        missed = 1.0 - tally.hit_tokens / tally.prompt_tokens if tally.prompt_tokens > 0 else 1.0
        if config.cost == "engines":
            prefill_s = engines.prefill_s_per_token * tally.tokens
            answer_s = config.decode_tokens * engines.decode_s[:, 1] * tally.count
        else:
            prefill_s = np.full(len(engines), v100_prefill_s(tally.tokens, tally.context))
            answer_s = np.full(len(engines), config.decode_tokens * config.token_s)
        shared = max(int(tally.holders.sum()), 1)
        return np.where(tally.holders, missed * tally.count * prefill_s / shared + answer_s, 0.0)


def _path(node: Node) -> list[Node]:
    """A node and those above it, the root last."""
    path = []
    at: Node | None = node
    while at is not None:
        path.append(at)
        at = at.parent
    return path


def v100_prefill_s(tokens: int, context: int) -> float:
    """AIBrix's prefill time of Mistral-7B on a V100, seconds.

    Args:
        tokens: To compute.
        context: Tokens before and with them.
    """
    linear_ms = 55.0
    if tokens >= 384:
        linear_ms = 0.27106428 * tokens + 10.52444263
    elif tokens >= 192:
        linear_ms = -295.0 + 3.125 * tokens - 6.4e-3 * tokens**2
    attention_ms = 0.8
    if context > 1024:
        attention_ms = 4.65e-4 * context + 0.398
        if tokens <= 1024:
            attention_ms /= 2.0
    quadratic_ms = -18.425 + 9.65e-3 * tokens + 5.4e-6 * tokens**2 if tokens >= 4096 else 0.0
    return (linear_ms + attention_ms + quadratic_ms) / 0.9 / 1e3
