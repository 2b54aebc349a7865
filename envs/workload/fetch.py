"""Downloads a published trace into the user's cache."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from serving_gym.envs.workload.formats import load_file, write_trace
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.traces import TraceInfo, cache_dir

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 60.0


def fetch_trace(
    info: TraceInfo, base_url: str | None = None, directory: Path | None = None, show_progress: bool = True
) -> Path:
    """Downloads a trace from its publisher and keeps it as parquet, beside a JSON file with its digest.

    The published times are kept (steps are spread on loading). The first fetch records the SHA-256 of the
    published file; later ones must find the same. Nothing is left behind by a fetch that fails, and an
    earlier good file stays.

    Args:
        info: which trace.
        base_url: mirror to download from; the publisher's own where None.
        directory: where to keep it; the user's cache where None.
        show_progress: whether to draw a progress bar (on stderr).

    Returns:
        The parquet file.

    Raises:
        ValueError: the download failed or was cut short; another number of rows or another digest than
            expected.
    """
    folder = cache_dir() if directory is None else directory
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / info.file
    url = f"{(base_url or info.base_url).rstrip('/')}/{info.source_path}"
    with _temporary(folder, Path(info.source_path).suffix) as raw:
        digest = _download(url, raw, show_progress)
        _check_digest(_sidecar(target), digest, url)
        trace = load_file(raw)
        if len(trace) != info.published_rows:
            raise ValueError(
                f"{url} has {len(trace)} requests, the published trace has {info.published_rows}"
            )
        _install(replace(trace, name=info.name, provenance=f"{info.publisher} ({info.licence})"), target)
        _write_sidecar(_sidecar(target), info, url, digest, trace)
    return target


def _sidecar(target: Path) -> Path:
    return target.with_suffix(".json")


@contextmanager
def _temporary(folder: Path, suffix: str) -> Iterator[Path]:
    """File in ``folder`` that is gone afterwards."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".partial-", suffix=suffix)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _download(url: str, target: Path, show_progress: bool) -> str:
    """Writes what ``url`` serves to ``target`` and returns its SHA-256."""
    digest = hashlib.sha256()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response,
            target.open("wb") as out,
            Progress(*columns, console=Console(stderr=True), disable=not show_progress) as progress,
        ):
            expected = int(response.headers.get("Content-Length") or 0)
            task = progress.add_task(url.rsplit("/", 1)[-1], total=expected or None)
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
                progress.advance(task, len(chunk))
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise ValueError(f"cannot download {url}: {error}") from error
    received = target.stat().st_size
    if expected and received != expected:
        raise ValueError(f"the download of {url} was cut short: {received} of {expected} bytes")
    return digest.hexdigest()


def _check_digest(sidecar: Path, digest: str, url: str) -> None:
    if not sidecar.is_file():
        return
    known = json.loads(sidecar.read_text(encoding="utf-8"))["source_sha256"]
    if known != digest:
        raise ValueError(
            f"{url} now has SHA-256 {digest}, the first fetch had {known}; "
            f"delete {sidecar} to accept the new file"
        )


def _install(trace: Workload, target: Path) -> None:
    with _temporary(target.parent, ".parquet") as partial:
        write_trace(trace, partial)
        partial.replace(target)


def _write_sidecar(sidecar: Path, info: TraceInfo, url: str, digest: str, trace: Workload) -> None:
    record = {
        "name": info.name,
        "url": url,
        "publisher": info.publisher,
        "licence": info.licence,
        "citation": info.citation,
        "rows": len(trace),
        "source_sha256": digest,
        "trace_sha256": trace.sha256(),
        "fetched_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with _temporary(sidecar.parent, ".json") as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        partial.replace(sidecar)
