"""Synonyms of words, and texts in which some words are replaced by theirs.

A table is a text file in UTF-8 with one word a line, a tab, and its synonyms with commas between them:

    big<TAB>large,huge,sizeable
    begin<TAB>start,set out

Empty lines and lines that begin with "#" are passed over; upper and lower case of the words are one. A word listed
twice has the synonyms of both lines. Such a table is made from WordNet or any other thesaurus in a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

Synonyms = Mapping[str, tuple[str, ...]]

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def load_synonyms(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Reads a table of synonyms.

    Returns:
        Synonyms of each word, in lower case.

    Raises:
        ValueError: no such file, or a line of another form; names the line, from 1.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"table of synonyms {file} does not exist")
    table: dict[str, tuple[str, ...]] = {}
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a text file in UTF-8") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        word, tab, listed = line.partition("\t")
        key = word.strip().lower()
        synonyms = [entry.strip() for entry in listed.split(",") if entry.strip().lower() not in ("", key)]
        if not (tab and key and synonyms):
            raise ValueError(f"{file}: line {number} must read WORD<TAB>SYNONYM,SYNONYM, it is {line!r}")
        table[key] = tuple(dict.fromkeys([*table.get(key, ()), *synonyms]))
    if not table:
        raise ValueError(f"table of synonyms {file} holds no words")
    return table


def perturbed(text: str, synonyms: Synonyms, share: float, rng: np.random.Generator) -> str:
    """A text with some of its words replaced by synonyms, everything else as it was.

    Args:
        text: any text.
        synonyms: by word in lower case.
        share: of all its words that are replaced, rounded; fewer where fewer have synonyms.
        rng: which words, and by what.
    """
    words = list(_WORD.finditer(text))
    known = [word for word in words if word[0].lower() in synonyms]
    count = min(round(share * len(words)), len(known))
    chosen = sorted(rng.choice(len(known), size=count, replace=False)) if count else []
    parts, end = [], 0
    for index in chosen:
        word = known[index]
        choices = synonyms[word[0].lower()]
        parts += [text[end : word.start()], _in_case_of(word[0], choices[int(rng.integers(len(choices)))])]
        end = word.end()
    return "".join([*parts, text[end:]])


def _in_case_of(word: str, synonym: str) -> str:
    if word.isupper() and len(word) > 1:
        return synonym.upper()
    return synonym[0].upper() + synonym[1:] if word[0].isupper() else synonym
