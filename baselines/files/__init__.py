"""Python files outside of any package, imported as modules of this one: `load_file("mine.py")`.

The name of such a module holds the path of its file, so that another process of this machine can import it by that name
alone, which is what unpickling a policy of it needs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


def load_file(path: str | Path) -> ModuleType:
    """The module in a file; it may import what lies beside it.

    Args:
        path: A `.py` file.

    Raises:
        ValueError: There is no such file.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"no file {str(path)!r}")
    return import_module(f"{__name__}.{_module_of(file)}")


def is_in_file(thing: object) -> bool:
    """Whether the class of an object is defined in a file outside of any package."""
    return type(thing).__module__.startswith(f"{__name__}.")


def _module_of(file: Path) -> str:
    stem = re.sub(r"\W", "_", file.stem, flags=re.ASCII)
    return f"{stem}_{str(file).encode().hex()}"


class _FileFinder(MetaPathFinder):
    """Finds modules of this package by the path in their name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is; None: it is none of these."""
        package, _, module = fullname.rpartition(".")
        if package != __name__:
            return None
        try:
            file = Path(bytes.fromhex(module.rpartition("_")[2]).decode())
        except ValueError:
            return None
        if not file.is_file():
            return None
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
        return spec_from_file_location(fullname, file)


sys.meta_path.append(_FileFinder())
