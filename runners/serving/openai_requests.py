"""What a router reads from requests and answers of OpenAI's API: lengths, prefix blocks, and tokens so far."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.live.events import EventStream

CHARACTERS_PER_TOKEN = 4  # of a prompt given as text
DEFAULT_OUTPUT_TOKENS = 256  # of a request that declares no limit
HASH_BLOCK_TOKENS = 64  # tokens of a prefix block
_PROMPTS = ("prompt", "messages", "input", "input_ids", "text")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_LONGEST_TOKENS = 131_072  # of a prompt that are hashed


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a request known on arrival.

    Attributes:
        input_tokens: Prompt.
        max_output_tokens: Declared limit of the answer, tokens.
        predicted_tokens: Predicted answer, tokens; None: nobody predicts it.
        class_id: Request class.
        priority: vLLM's convention: the lower value is served first.
    """

    input_tokens: int
    max_output_tokens: int
    predicted_tokens: int | None = None
    class_id: int = 0
    priority: int = 0


def prompt_of(body: Mapping[str, Any]) -> Any:
    """The prompt of a request: text, token ids, or chat messages; empty text if there is none."""
    return next((body[name] for name in _PROMPTS if body.get(name)), "")


def lengths_of(body: Mapping[str, Any], class_id: int = 0) -> Lengths:
    """Lengths of a request of OpenAI's API.

    A prompt may be token ids, text (one token per four characters) or chat messages. Without a limit 256 tokens are
    assumed, as is what no number can be read from. `predicted_tokens` of the body is a prediction.

    Args:
        body: The request.
        class_id: Its class.
    """
    prompt = prompt_of(body)
    tokens = len(prompt) if is_token_ids(prompt) else _estimate(prompt)
    parameters = body.get("sampling_params")
    limits = parameters if isinstance(parameters, Mapping) else {}
    asked = [body.get(name) for name in _LIMITS] + [limits.get("max_new_tokens"), limits.get("max_tokens")]
    most = next((number for value in asked if (number := _count(value))), DEFAULT_OUTPUT_TOKENS)
    priority = body.get("priority")
    return Lengths(
        input_tokens=max(tokens, 1),
        max_output_tokens=most,
        predicted_tokens=_count(body.get("predicted_tokens")),
        class_id=class_id,
        priority=priority if isinstance(priority, int) and abs(priority) < 2**31 else 0,
    )


def is_token_ids(prompt: Any) -> bool:
    """Whether a prompt is a list of token ids."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


def prefix_ids(body: Mapping[str, Any], block_tokens: int = HASH_BLOCK_TOKENS) -> NDArray[np.int32]:
    """Ids of the full blocks of a prompt, (blocks,); two prompts share ids as far as they share blocks from the start.

    Text is cut by characters, four to a token, so that ids are those of the text and not of the engine's own blocks.

    Args:
        body: The request.
        block_tokens: Tokens of a block.
    """
    ids, before = [], b""
    for block in _blocks(prompt_of(body), block_tokens):
        before = hashlib.blake2b(before + block, digest_size=8).digest()
        ids.append(int.from_bytes(before[:4], "little") >> 1)
    return np.array(ids, np.int32)


def _blocks(prompt: Any, size: int) -> Iterator[bytes]:
    """The full blocks of `size` tokens of a prompt."""
    if is_token_ids(prompt):
        longest = _LONGEST_TOKENS
        for first in range(0, min(len(prompt), longest) - size + 1, size):
            yield repr(prompt[first : first + size]).encode()
        return
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=str)
    size, longest = size * CHARACTERS_PER_TOKEN, _LONGEST_TOKENS * CHARACTERS_PER_TOKEN
    for first in range(0, min(len(text), longest) - size + 1, size):
        yield text[first : first + size].encode(errors="replace")


def _estimate(prompt: Any) -> int:
    """Tokens of text, of messages or of their parts; what is no text counts nothing."""
    if isinstance(prompt, list):
        return sum(_estimate(part) for part in prompt)
    if isinstance(prompt, Mapping):  # a message, or a part of one
        return _estimate(prompt.get("content") or prompt.get("text") or "")
    return -(-len(str(prompt)) // CHARACTERS_PER_TOKEN)


def _count(value: Any) -> int | None:
    """A positive whole number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < 2**31:
        return None
    return int(value)


class AnswerMeter:
    """Counts the tokens of an answer as its bytes pass through: a stream of server-sent events, or one JSON object.

    Args:
        streams: Whether it is a stream.

    Attributes:
        streams: Whether it is a stream.
        tokens: Output tokens so far: those of the last `usage`, else one for each event with a choice.
        whole: Whether the answer has reached its end (`[DONE]`, or a whole JSON object).
        failed: Why it is an error; empty if it is none.
    """

    _MOST_BYTES = 4 * 2**20  # of an answer that is no stream

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        self._events = EventStream() if streams else None
        self._held = bytearray()
        self.tokens = 0
        self.whole = False
        self.failed = ""

    def feed(self, data: bytes, last: bool = False) -> None:
        """Takes a piece of the answer; `last`: nothing follows."""
        if self._events is None:
            if len(self._held) < self._MOST_BYTES:
                self._held += data
            if last:
                self._read(bytes(self._held), one_each=False)
                self.whole = not self.failed
            return
        for payload in self._events.feed(data):
            if payload.strip() == b"[DONE]":
                self.whole = True
            else:
                self._read(payload, one_each=True)

    def _read(self, payload: bytes, one_each: bool) -> None:
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError):
            return
        if not isinstance(chunk, dict):
            return
        if chunk.get("error"):
            self.failed = str(chunk["error"])[:200]
        usage = chunk.get("usage") or chunk.get("meta_info")  # OpenAI's, or SGLang's
        counted = _count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        if counted is not None:
            self.tokens = max(self.tokens, counted)
        elif one_each and chunk.get("choices"):
            self.tokens += 1
