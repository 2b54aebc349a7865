"""The compiled data plane: continuous batching, KV blocks, queues and built-in routers.

Numba caches each compiled function beside its source and looks only at that one file to tell whether the cache is stale.
A change in a function that another file's function calls would go unnoticed, so the cache is dropped whenever any of
the kernel's files has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path


def _drop_stale_cache() -> None:
    here = Path(__file__).parent
    cache = here / "__pycache__"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()
    stamp = cache / "kernel.sha256"
    with contextlib.suppress(OSError):  # a read-only installation compiles what it must
        if stamp.exists() and stamp.read_text() == digest:
            return
        cache.mkdir(exist_ok=True)
        for stale in [*cache.glob("*.nbi"), *cache.glob("*.nbc")]:
            stale.unlink(missing_ok=True)
        stamp.write_text(digest)


_drop_stale_cache()
