"""Tables of configuration dataclasses, each written once, and of the files of config groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.runners.configuration.folders import CONFIG_DIR
from serving_gym.runners.documentation.markdown import code, importable, table
from serving_gym.runners.documentation.schemas import Argument, arguments_of, prose_of
from serving_gym.runners.documentation.units import unit_of

_COMMENT = re.compile(r"(?m)^# (?!@package)(.+)$")


class Schemas:
    """Writes each dataclass once, and links to it from then on."""

    def __init__(self) -> None:
        self._written: dict[type, str] = {}  # page of each

    def page(
        self, path: str, title: str, lead: str, roots: Iterable[type], groups: Iterable[str] = ()
    ) -> str:
        """A page with dataclasses and those that they hold.

        Args:
            path: Of the page, in the reference.
            title: Of the page.
            lead: What it is about.
            roots: Dataclasses to begin with.
            groups: Config groups whose files are listed first.
        """
        text = [f"# {title}", lead]
        for group in groups:
            text += [f"## Files of `configs/{group}`", choices_table(group)]
        new = [cls for root in roots for cls in self._new(root)]
        self._written |= dict.fromkeys(new, path)
        for cls in new:
            text += [f"## `{cls.__name__}`", prose_of(cls), self.table_of(cls, path)]
        return importable("\n\n".join(text)) + "\n"

    def table_of(self, cls: type, path: str) -> str:
        """The fields of a dataclass, with links to the dataclasses in them.

        Args:
            cls: The dataclass.
            path: Of the page that it is on.
        """
        return table(
            ["field", "type", "default", "unit", "meaning"],
            (
                [
                    f"`{item.name}`",
                    self.type_of(item, path),
                    code(item.default),
                    unit_of(item.name),
                    item.meaning,
                ]
                for item in arguments_of(cls, ClusterSpec)
            ),
        )

    def _new(self, cls: type, above: tuple[type, ...] = ()) -> Iterator[type]:
        """A dataclass and those that it holds, as far as they are on no page."""
        if cls in self._written or cls in above:
            return
        self._written[cls] = ""
        yield cls
        for item in arguments_of(cls, ClusterSpec):
            if item.nested:
                yield from self._new(item.nested, (*above, cls))

    def type_of(self, item: Argument, path: str) -> str:
        """The type of a field, with a link where a dataclass is written.

        Args:
            item: The field.
            path: Of the page that it is shown on.
        """
        page = self._written.get(item.nested) if item.nested else None
        if not page or item.nested is None:
            return f"`{item.kind}`"
        target = "" if page == path else f"{'../' * path.count('/')}{page}"
        return f"[`{item.kind}`]({target}#{item.nested.__name__.lower()})"


def choices_table(group: str) -> str:
    """Files of a config group with what their first comments say."""
    files = sorted((CONFIG_DIR / group).glob("*.yaml"))
    return table(["file", "what it is"], ([f"`{path.stem}`", purpose_of(path)] for path in files))


def purpose_of(path: Path) -> str:
    """The comments at the head of a configuration file."""
    head = path.read_text(encoding="utf-8").partition("\n\n")[0]
    lines = []
    for line in head.splitlines():
        if not line.startswith("#"):
            break
        lines += _COMMENT.findall(line)
    return " ".join(lines)
