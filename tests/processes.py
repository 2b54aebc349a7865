"""Which processes are at work."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Not where it is gone, or has ended unnoticed (in a container whose first process reaps none)."""
    return (_state_and_parent(pid) or "Z")[0] != "Z"


def children_of(pid: int) -> list[int]:
    """Those that a process has started itself."""
    others = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [other for other in others if (_state_and_parent(other) or ["", ""])[1] == str(pid)]


def _state_and_parent(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
