"""Whether a process is at work."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Not where it is gone, or has ended unnoticed (in a container whose first process reaps none)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
