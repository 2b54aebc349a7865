"""Reads conversations in ShareGPT's form, and converts them to a workload.

A file is a JSON list, one entry a conversation: ``{"id": ..., "conversations": [{"from": "human", "value": ...},
{"from": "gpt", "value": ...}, ...]}``. The first turn of the user is the prompt, the first turn of the model after it
the answer. Published files are not all alike, so these are read as well: speakers called "user", "assistant",
"chatgpt", "bard" and "bing" (upper case too), conversations that begin with the model or with a system prompt (what
stands before the user's first turn is passed over), several turns of the user before the answer (the first counts), and
entries without an id (their place in the file is taken). A conversation without such a prompt and an answer to it is
left out and counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.envs.workload.predictions import LONGEST_TOKENS
from serving_gym.envs.workload.schema import TokenArray, Workload
from serving_gym.envs.workload.seeding import stream

USER, MODEL = "user", "model"
_SPEAKERS = {
    **dict.fromkeys(("human", "user"), USER),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bard", "bing"), MODEL),
}
_WORDS = re.compile(r"\w+|[^\w\s]")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")
_COUNTED_AT_ONCE = 1000
_PEEKED_CHARACTERS = 400
_MARKS_OF_TRACES = (
    '"arrival_s"',
    '"timestamp"',
    '"input_tokens"',
    '"input_length"',
    '"requests"',
    '"metadata"',
)


@dataclass(frozen=True)
class Conversations:
    """Prompts and their answers, in the order of the file.

    Attributes:
        ids: (N,), id of each conversation in the file.
        prompts: (N,), first turn of the user.
        answers: (N,), first turn of the model after it.
        left_out: number of skipped entries, by reason.
        name: of the file, without its ending.
    """

    ids: tuple[str, ...]
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    left_out: dict[str, int]
    name: str

    def __len__(self) -> int:
        """Number of conversations."""
        return len(self.ids)

    def rows(self, chosen: Iterable[int]) -> Conversations:
        """Some of the conversations, in the order given."""
        columns = (self.ids, self.prompts, self.answers)
        picked = list(chosen)
        ids, prompts, answers = (tuple(column[row] for row in picked) for column in columns)
        return replace(self, ids=ids, prompts=prompts, answers=answers)


def holds_conversations(path: str | Path) -> bool:
    """Whether a file is a JSON list, and not one of requests (with times or lengths in its beginning)."""
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    with file.open(encoding="utf-8-sig", errors="replace") as text:
        beginning = text.read(_PEEKED_CHARACTERS).lstrip()
    return beginning.startswith("[") and not any(mark in beginning for mark in _MARKS_OF_TRACES)


def load_conversations(path: str | Path, limit: int | None = None) -> Conversations:
    """Reads a file of conversations.

    Args:
        path: ``.json``, in UTF-8.
        limit: conversations to read, from the beginning; None: all.

    Raises:
        ValueError: no such file, not a JSON list, an entry that is not a conversation, or none with an answer.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"conversations {file} do not exist")
    try:
        entries = json.loads(file.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{file}: must be a JSON list of conversations, not {type(entries).__name__}")
    found: list[tuple[str, str, str]] = []
    left_out: Counter[str] = Counter()
    for number, entry in enumerate(entries):
        if limit is not None and len(found) == limit:
            break
        if not isinstance(entry, dict) or not isinstance(entry.get("conversations"), list):
            raise ValueError(f"{file}: entry {number} has no list 'conversations'")
        prompt, answer = _first_exchange(entry["conversations"])
        if prompt is None or answer is None:
            left_out["no turn of the user" if prompt is None else "no answer"] += 1
            continue
        found.append((str(entry.get("id", number)), prompt, answer))
    if not found:
        raise ValueError(f"{file}: none of its {len(entries)} entries has a prompt and an answer")
    ids, prompts, answers = zip(*found, strict=True)
    return Conversations(ids, prompts, answers, dict(left_out), file.stem)


class TokenCounter:
    """Counts the tokens of texts.

    Args:
        tokenizer: folder of a tokenizer (of the LLM that is served), as the `transformers` package saves it; None
            counts words and punctuation marks, which is near but not equal to what any LLM counts.

    Raises:
        ValueError: no such tokenizer, or `transformers` is not installed.
    """

    def __init__(self, tokenizer: str | Path | None = None) -> None:
        self.description = "words and punctuation marks"
        self._tokenizer: Any = None
        if tokenizer is not None:
            self._tokenizer = load_tokenizer(tokenizer)
            self.description = f"tokens of {Path(tokenizer).name}"

    def __call__(self, texts: Sequence[str]) -> TokenArray:
        """Tokens of each text, (N,), without special ones; at least 1."""
        if self._tokenizer is None:
            counts = [sum(1 for _ in _WORDS.finditer(text)) for text in texts]
        else:
            counts = []
            for first in range(0, len(texts), _COUNTED_AT_ONCE):
                part = list(texts[first : first + _COUNTED_AT_ONCE])
                encoded = self._tokenizer(part, add_special_tokens=False, verbose=False)
                counts += [len(ids) for ids in encoded["input_ids"]]
        return np.maximum(np.array(counts, dtype=np.int32), 1)


def conversation_workload(
    conversations: Conversations, counter: TokenCounter, predicted_tokens: TokenArray | None = None
) -> Workload:
    """The first exchange of every conversation as a request, in the order of the file.

    Arrivals are Poisson (PreServe, section 5.4) at 1 request/s, always by the same draw, to be scaled to the rate that
    is wanted. Answers end at 4096 tokens (LLaMA-2's longest), which is also what every client declares.

    Args:
        conversations: the texts.
        counter: measures them.
        predicted_tokens: (N,), predicted output lengths, tokens, if there are any.
    """
    gaps = stream(0, "conversations").exponential(1.0, len(conversations))
    arrival_s = np.cumsum(gaps)
    return Workload(
        arrival_s=arrival_s - arrival_s[0],
        input_tokens=counter(conversations.prompts),
        output_tokens=answer_tokens(conversations, counter),
        max_output_tokens=np.full(len(conversations), LONGEST_TOKENS, dtype=np.int32),
        predicted_tokens=predicted_tokens,
        name=conversations.name,
        provenance=f"conversations of {conversations.name}; lengths in {counter.description}; Poisson arrivals",
    ).validate()


def answer_tokens(conversations: Conversations, counter: TokenCounter) -> TokenArray:
    """Length of every answer, (N,), tokens, at most 4096."""
    return np.minimum(counter(conversations.answers), LONGEST_TOKENS)


def _first_exchange(turns: list[Any]) -> tuple[str | None, str | None]:
    """First turn of the user, and first turn of the model after it; None where there is none with any text."""
    prompt = None
    for turn in turns:
        if not isinstance(turn, dict):
            continue
        speaker, text = _SPEAKERS.get(str(turn.get("from", "")).strip().lower()), turn.get("value")
        if not isinstance(text, str) or not text.strip():
            continue
        if prompt is None and speaker == USER:
            prompt = text
        elif prompt is not None and speaker == MODEL:
            return prompt, text
    return prompt, None


def load_tokenizer(folder: str | Path) -> Any:
    """A tokenizer from its folder, as the `transformers` package saves it; nothing is downloaded.

    Raises:
        ValueError: it is not there or cannot be read, or the package is not installed.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"tokenizer must be a folder with a saved tokenizer, {str(folder)!r} is none")
    if not any(
        (Path(folder) / name).is_file() for name in _TOKENIZER_FILES
    ):  # transformers would make an empty one
        raise ValueError(
            f"tokenizer {str(folder)!r} cannot be read: it has none of {', '.join(_TOKENIZER_FILES)}"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            "a tokenizer needs the package 'transformers': pip install 'serving-gym[text]'"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"tokenizer {str(folder)!r} cannot be read: {reason}") from error
