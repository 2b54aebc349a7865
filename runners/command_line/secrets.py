"""Keeps passwords in addresses out of the files that a run leaves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_CREDENTIALS = re.compile(r"(https?://)[^/@\s'\",\]]*@", re.IGNORECASE)


def refuse_passwords(words: Sequence[str]) -> None:
    """Refuses addresses with a user name or password, before anything is written.

    Args:
        words: of the command line.

    Raises:
        ValueError: one has them; the message has them not.
    """
    for word in words:
        bare = _CREDENTIALS.sub(r"\1", word)
        if bare != word:
            raise ValueError(
                f"{bare!r} was given with a user name or password in its address, which would be written to the "
                "records; use backend.access.api_key_env or backend.access.headers"
            )


def remove_passwords(folder: Path) -> None:
    """Removes user names and passwords from addresses in the files that Hydra has written, as YAML files may have them.

    Args:
        folder: run directory.
    """
    for file in sorted((folder / ".hydra").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        if _CREDENTIALS.search(text):
            file.write_text(_CREDENTIALS.sub(r"\1", text), encoding="utf-8")
