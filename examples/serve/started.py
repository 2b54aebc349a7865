"""`runners.serve` in a process of its own, for the examples beside this file."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

START_WITHIN_S = 180.0


@asynccontextmanager
async def started(protocol: str, *words: str) -> AsyncIterator[str]:
    """Starts `runners.serve` for one protocol on a free port, and stops it at the end; yields its address.

    Args:
        protocol: Name of the protocol.
        words: Overrides: policy, cluster, and so on; without `out` what it writes goes with it.

    Raises:
        RuntimeError: it has ended; what it wrote says why.
        TimeoutError: it has not begun in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = [] if any(word.startswith("out=") for word in words) else [f"out={folder}"]
        async with _process(
            protocol, "env=routing", *words, *own, f"protocols=[{protocol}]", "port=0"
        ) as url:
            yield url


@asynccontextmanager
async def _process(protocol: str, *words: str) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "serving_gym.runners.serve", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while f"{protocol} at".encode() not in (line := await process.stdout.readline()):
                if not line:
                    raise RuntimeError("runners.serve has ended; what it wrote says why")
        yield line.decode().split()[-1]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
