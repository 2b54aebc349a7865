"""What a router notices of its requests between two decisions: first tokens, and how many tokens came in a second.

All of it is in `RoutingState.in_flight`, the router's own record, which a simulation and live servers have alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.routing.state import RoutingState

ROOM = 1 << 16  # requests that are remembered at once; of two with one remainder the later one
_MOST_NEWS = 1 << 12  # first tokens that one decision can bring
# A prediction that is outgrown grows by a fifth, as in `envs.routing.observation.expected_output`.
_GROWS_BY = 5

ENTRY_DTYPE = np.dtype(
    [
        ("index", np.int64),  # row of the workload; -1: nothing
        ("place", np.int32),  # where it was sent
        ("own_tokens", np.int32),  # of its prompt, to prefill there
        ("sent_s", np.float64),  # -1: not by this policy
        ("expected_s", np.float64),  # to its first token, when it was sent
        ("tokens_then", np.int32),  # output tokens when the window began
        ("window", np.int32),  # the last one at whose beginning it decoded
        ("answered", np.bool_),
    ],
    align=True,
)

# What the requests in flight come to at a place; all that is known when a request is to be sent.
LOAD_DTYPE = np.dtype(
    [
        ("waiting", np.float64),  # requests without a first token
        ("decoding", np.float64),
        ("own_tokens", np.float64),  # prompt tokens to prefill, of the waiting
        ("waiting_tokens", np.float64),  # their whole prompts
        ("context_tokens", np.float64),  # of the decoding
        ("left_tokens", np.float64),  # output still expected
        ("slowed", np.float64),  # sum over requests of 1 / (tokens of the answer x TPOT SLO): 1 / s
        # the same, times the tokens for which the request to be sent decodes beside it
        ("beside", np.float64),
    ],
    align=True,
)


class News(NamedTuple):
    """First tokens that have come; F of them."""

    places: NDArray[np.int64]  # (F,) where
    expected_s: NDArray[np.float64]  # (F,) TTFT that was expected
    ttft_s: NDArray[np.float64]  # (F,) after sending


@dataclass(frozen=True)
class Windows:
    """What each of P engines did for some time in which it decoded throughout.

    Attributes:
        valid: (P,) whether it did, and was seen to.
        elapsed_s: Length of the window, seconds.
        iterations: (P,) iterations: the tokens of a request that decoded throughout.
        sequences: (P,) tokens that came: requests in these iterations, summed.
        context: (P,) context in these iterations, summed, tokens.
        prefilled: (P,) prompt tokens of the first tokens that came.
    """

    valid: NDArray[np.bool_]
    elapsed_s: float
    iterations: NDArray[np.float64]
    sequences: NDArray[np.float64]
    context: NDArray[np.float64]
    prefilled: NDArray[np.float64]


class Ledger:
    """Requests that were sent and have not ended, and what has come of them.

    Args:
        num_places: P.
        tpot_slos_s: (C,) TPOT SLO of each class, seconds.
    """

    def __init__(self, num_places: int, tpot_slos_s: NDArray[np.float64]) -> None:
        self._entries = np.zeros(ROOM, ENTRY_DTYPE)
        self._entries["index"], self._entries["window"] = -1, -1
        self._news = np.empty((3, _MOST_NEWS))
        self._tpot_slos_s = tpot_slos_s
        self._prefilled = np.zeros(num_places)
        # Requests that decoded when the window began, and their context.
        self._decoded = np.zeros((2, num_places))
        self._window, self._begun_s = 0, -1.0
        self.loads = np.zeros(num_places, LOAD_DTYPE)

    def read(self, state: RoutingState, output_tokens: float) -> News:
        """Updates `loads` and returns the first tokens that have come since the last call.

        Args:
            state: As the router observes it.
            output_tokens: Expected of the request to be sent.
        """
        self.loads[:] = 0
        number = _read(
            state.in_flight,
            self._entries,
            self._tpot_slos_s,
            output_tokens,
            self.loads,
            self._prefilled,
            self._news,
        )
        places, expected_s, ttft_s = self._news[:, :number]
        return News(places.astype(np.int64), expected_s.copy(), ttft_s.copy())

    def sent(self, index: int, place: int, own_tokens: float, now_s: float, expected_s: float) -> None:
        """A request goes to a place."""
        self._entries[index % ROOM] = (index, place, own_tokens, now_s, expected_s, 0, -1, False)

    def window(self, state: RoutingState, least_s: float) -> Windows | None:
        """The window that ends now, if it has lasted; another begins. Call it after `read`.

        Args:
            state: As the router observes it.
            least_s: It lasts at least so long, seconds.
        """
        elapsed_s = state.now_s - self._begun_s
        if self._begun_s >= 0 and elapsed_s < least_s:
            return None
        made = self._close(state, elapsed_s) if self._begun_s >= 0 else None
        self._window += 1
        self._begun_s = state.now_s
        self._prefilled[:] = 0.0
        self._decoded[:] = 0.0
        _begin(state.in_flight, self._entries, self._window, self._decoded)
        return made

    def _close(self, state: RoutingState, elapsed_s: float) -> Windows:
        iterations, sequences, context = np.zeros((3, len(self.loads)))
        valid = np.zeros(len(self.loads), np.bool_)
        _close(
            state.in_flight,
            self._entries,
            self._window,
            self._begun_s,
            self._decoded,
            iterations,
            sequences,
            context,
            valid,
        )
        return Windows(valid, elapsed_s, iterations, sequences, context, self._prefilled.copy())


@njit(cache=True)
def _read(
    flights: NDArray[np.void],
    entries: Any,
    tpot_slos_s: NDArray[np.float64],
    output_tokens: float,
    loads: Any,
    prefilled: NDArray[np.float64],
    news: NDArray[np.float64],
) -> int:
    found = 0
    for flight in flights:
        load, entry = loads[flight.place], entries[flight.index % len(entries)]
        known = entry.index == flight.index and entry.place == flight.place
        own_tokens = entry.own_tokens if known else flight.input_tokens
        generated = flight.generated_tokens if flight.first_token_s >= 0 else 0
        output = max(flight.predicted_tokens, 1)
        while output <= generated:
            output += max(output // _GROWS_BY, 1)
        left = output - generated
        load.left_tokens += left
        slowed = 1.0 / (output * tpot_slos_s[flight.class_id])
        load.slowed += slowed
        load.beside += slowed * min(left, output_tokens)
        if flight.first_token_s < 0:
            load.waiting += 1
            load.own_tokens += own_tokens
            load.waiting_tokens += flight.input_tokens
            continue
        load.decoding += 1
        load.context_tokens += flight.input_tokens + generated
        if known and not entry.answered:
            entry.answered = True
            prefilled[flight.place] += own_tokens
            if entry.sent_s >= 0 and found < news.shape[1]:
                news[0, found] = flight.place
                news[1, found] = entry.expected_s
                news[2, found] = flight.first_token_s - entry.sent_s
                found += 1
    return found


@njit(cache=True)
def _begin(flights: NDArray[np.void], entries: Any, window: int, decoded: NDArray[np.float64]) -> None:
    for flight in flights:
        entry = entries[flight.index % len(entries)]
        if entry.index != flight.index or entry.place != flight.place:
            entry.index, entry.place = flight.index, flight.place
            entry.own_tokens, entry.sent_s = flight.input_tokens, -1.0
            entry.answered = flight.first_token_s >= 0
            entry.window = -1
        if flight.first_token_s >= 0:
            entry.tokens_then, entry.window = flight.generated_tokens, window
            decoded[0, flight.place] += 1
            decoded[1, flight.place] += flight.input_tokens + flight.generated_tokens


@njit(cache=True)
def _close(
    flights: NDArray[np.void],
    entries: Any,
    window: int,
    begun_s: float,
    decoded: NDArray[np.float64],
    iterations: NDArray[np.float64],
    sequences: NDArray[np.float64],
    context: NDArray[np.float64],
    valid: NDArray[np.bool_],
) -> None:
    stayed = np.zeros(len(iterations))
    for flight in flights:
        if flight.first_token_s < 0:
            continue
        place, generated = flight.place, flight.generated_tokens
        entry = entries[flight.index % len(entries)]
        if entry.index == flight.index and entry.place == place and entry.window == window:
            came = generated - entry.tokens_then
            stayed[place] += 1
            iterations[place] = max(iterations[place], came)
        elif flight.first_token_s >= begun_s:
            came = generated
        else:
            continue
        sequences[place] += came
        context[place] += came * (flight.input_tokens + generated - 0.5 * came)
    for place in range(len(iterations)):
        valid[place] = stayed[place] > 0 and iterations[place] >= 1
        gone = decoded[0, place] - stayed[place]  # they have ended, after half of the window on average
        if valid[place] and gone > 0:
            tokens = 0.5 * iterations[place] * gone
            sequences[place] += tokens
            context[place] += tokens * decoded[1, place] / decoded[0, place]
