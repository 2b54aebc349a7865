"""Bytes and text of a file, whatever it is packed in."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from serving_gym.envs.workload.reading.context import MalformedError, Reading

MAX_BYTES = 4 << 30
_MOST_EXPANSION = 300  # times the packed size; tables of numbers pack to a tenth
_SMALL_BYTES = 256 << 20
_CHUNK = 1 << 24
_GZIP, _ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_NOT_READ = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x89HDF": "HDF5",
    b"%PDF": "PDF",
}
_ARROW = (b"ARROW1", "an Arrow (feather) file")


def check_file(path: Path) -> None:
    """Raises ValueError unless a path is a regular file."""
    if path.is_dir():
        raise ValueError(f"trace file {path} is a folder; give a file of it")
    if not path.exists():
        raise ValueError(f"trace file {path} does not exist")
    if not path.is_file():
        raise ValueError(f"trace file {path} is not a regular file")


def unpacked(reading: Reading) -> bytes:
    """Content of the file, after gzip or zstd.

    Raises:
        MalformedError: empty, broken, packed otherwise, or too large.
    """
    try:
        size = reading.path.stat().st_size
        with reading.path.open("rb") as file:
            head = file.read(8)
            file.seek(0)
            if head.startswith(_GZIP):
                reading.container = "gzip"
                return _gunzipped(file, size)
            if head.startswith(_ZSTD):
                reading.container = "zstd"
                return _unzstded(file, size)
            content = _limited(file, size)
    except OSError as error:
        raise MalformedError(f"cannot be read ({_first_line(error)})") from error
    for magic, what in (*_NOT_READ.items(), _ARROW):
        if content.startswith(magic):
            raise MalformedError(f"is {what}, which is not read; gzip and zstd are")
    if not content.strip(b"\x00 \t\r\n\xef\xbb\xbf\xff\xfe"):
        raise MalformedError("is empty: it holds no requests (is not a table)")
    return content


def text_of(reading: Reading, content: bytes) -> str:
    """Text of a file: UTF-8 with or without a byte order mark, or UTF-16.

    Raises:
        MalformedError: it is not text.
    """
    encoding = "utf-8-sig"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif content[:2000:2].count(0) > 400 or content[1:2000:2].count(0) > 400 or b"\x00" in content[:4]:
        encoding = "utf-16-le" if content[1:2] == b"\x00" else "utf-16-be"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        named = " (its name says gzip, its content does not)" if reading.path.suffix == ".gz" else ""
        raise MalformedError(
            f"is not text: byte {error.start} is not {'UTF-16' if 'utf-16' in encoding else 'UTF-8'}{named}"
        ) from None
    if "\x00" in text:
        raise MalformedError(f"is not text: it has a zero byte at character {text.index(chr(0))}")
    return text.removeprefix("\ufeff")


def _gunzipped(file: IO[bytes], size: int) -> bytes:
    try:
        with gzip.open(file) as stream:
            return _limited(stream, size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MalformedError(f"is a broken gzip file ({_first_line(error)})") from error


def _unzstded(file: IO[bytes], size: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
            return _limited(stream, size)
    except (OSError, pa.ArrowException) as error:
        raise MalformedError(f"is a broken zstd file ({_first_line(error)})") from error


def _limited(stream: Any, size: int) -> bytes:
    """All of a stream.

    Args:
        stream: what to read.
        size: bytes of the file.

    Raises:
        MalformedError: it has more than `MAX_BYTES`, or far more than its size lets expect.
    """
    most = min(MAX_BYTES, max(_SMALL_BYTES, _MOST_EXPANSION * size))
    held = io.BytesIO()
    while chunk := stream.read(_CHUNK):
        held.write(chunk)
        if held.tell() > most:
            raise MalformedError(f"unpacks to more than {most >> 20:,} MiB; cut it into parts")
    return held.getvalue()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
