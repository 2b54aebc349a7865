"""vllm-router's default: to where the prompt's beginning has been before, unless loads are out of balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.router import Router, in_flight_counts, lowest
from serving_gym.baselines.common.routers.prefix_index import PrefixTree
from serving_gym.baselines.policy import Action, Constants, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

CHARACTERS_A_TOKEN = 8  # a token is eight hexadecimal digits in its tree


@dataclass(frozen=True)
class CacheAwareConfig(Constants):
    """Constants of `CacheAwarePolicy`, defaults of the command `vllm-router` (`py_src/vllm_router/router_args.py`).

    Attributes:
        cache_threshold: Share of the prompt that must have been somewhere before, for it to go there again; 0 to 1.
        balance_abs_threshold: Loads are out of balance where the most requests in flight exceed the fewest by more
            than this ...
        balance_rel_threshold: ... and are more than so many times the fewest.
        eviction_interval_s: Time between two prunings of the tree, seconds.
        max_tree_size: Characters that an engine may hold in the tree after a pruning, eight a token.
    """

    cache_threshold: float = tunable(0.3, 0.0, 1.0)
    balance_abs_threshold: float = tunable(64, 1.0, 256.0, log=True)
    balance_rel_threshold: float = tunable(1.5, 1.0, 8.0, log=True)
    eviction_interval_s: float = 120.0
    max_tree_size: int = 2**25

    def __post_init__(self) -> None:
        check_within(self, "[0, 1]", "cache_threshold")
        check_not_negative(self, "balance_abs_threshold", "max_tree_size")
        check_at_least(self, 1, "balance_rel_threshold")
        check_positive(self, "eviction_interval_s")


class CacheAwarePolicy(Router):
    """Longest known prefix while loads are balanced, fewest requests otherwise.

    vllm-router 0.1.17, `policies/cache_aware.rs`, the way of HTTP requests (`select_prepared`). Out of balance: the
    fewest requests in flight. In balance: the share of the prompt that each engine has been sent before, by a radix
    tree of past prompts; if the best share exceeds the threshold, the engines that have it, and among these the
    fewest requests; else the fewest requests of all. Ties go to the first engine. The prompt then enters the tree
    for its engine, whatever decided; a timer prunes the tree.

    Departures: ids stand for tokens, each for `hash_block_tokens` of them, so that a share is of whole blocks; edges of
    the tree are split between ids, the original's between characters, which changes no share and a node's size by less
    than a token; a prompt without ids, which shares nothing, is not remembered.

    Args:
        config: Its constants.
    """

    name = "cache_aware"

    def __init__(self, config: CacheAwareConfig | None = None) -> None:
        self.config = config or CacheAwareConfig()
        # the original compares with the nearest single-precision number
        self._cache_threshold = float(np.float32(self.config.cache_threshold))

    def begin(self) -> None:
        """An empty tree."""
        self._tree = PrefixTree(len(self.engines))
        self._pruned_s = 0.0

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The best known prefix, or the lightest load."""
        self._prune(state.now_s, request.hash_block_tokens)
        loads = in_flight_counts(state)
        able = state.can_take
        matched = self._tree.match(request.hash_ids) * request.hash_block_tokens
        share = np.minimum(matched, request.input_tokens) / request.input_tokens
        best = share[able].max()
        if best > self._cache_threshold and not self._out_of_balance(loads[able]):
            able = able & (share == best)
        place = lowest(loads, able)
        if len(request.hash_ids):
            self._tree.insert(request.hash_ids, place)
        return place

    def _out_of_balance(self, loads: np.ndarray) -> bool:
        most, fewest = int(loads.max()), int(loads.min())
        config = self.config
        return most - fewest > config.balance_abs_threshold and most > fewest * config.balance_rel_threshold

    def _prune(self, now_s: float, block_tokens: int) -> None:
        passed = (now_s - self._pruned_s) // self.config.eviction_interval_s
        if passed >= 1:
            self._pruned_s += passed * self.config.eviction_interval_s
            self._tree.prune(self.config.max_tree_size // (CHARACTERS_A_TOKEN * block_tokens))
