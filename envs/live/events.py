"""Server-sent events, as the HTML standard defines the stream (section 9.2.6)."""

from __future__ import annotations

from serving_gym.envs.live.http import AnswerError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_BYTES = 1 << 20  # of one event


class EventStream:
    r"""Takes a stream apart as it comes, wherever it is split.

    Lines end with LF, CR LF or CR; a blank line ends an event; the `data` lines of an event are joined by LF; a blank
    after the colon belongs to the format; comments and other fields are ignored.
    """

    def __init__(self) -> None:
        self._rest = b""  # of a line that has not ended
        self._data: list[bytes] = []  # of an event that has not ended
        self._after_cr = False
        self._begun = False

    def feed(self, received: bytes) -> list[bytes]:
        """Returns the data of the events that `received` completes.

        Raises:
            AnswerError: an event has more than a mebibyte.
        """
        if self._after_cr and received.startswith(b"\n"):  # second half of a CR LF
            received = received[1:]
            self._after_cr = False
        if not received:
            return []
        self._after_cr = received.endswith(b"\r")
        *lines, self._rest = _lines(self._rest + received)
        if lines and not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        events = [event for line in lines if (event := self._take(line)) is not None]
        self._check_size()
        return events

    def finish(self) -> list[bytes]:
        """Returns the data of an event that the end of the stream cuts off.

        The standard drops it; some servers leave out the blank line after the last one, or its line end.
        """
        rest = self._take(self._rest) if self._rest else None
        last = self._take(b"")
        self._rest = b""
        return [event for event in (rest, last) if event is not None]

    def _check_size(self) -> None:
        if len(self._rest) + sum(map(len, self._data)) > _MOST_BYTES:
            raise AnswerError(f"an event has more than {_MOST_BYTES:,} bytes")

    def _take(self, line: bytes) -> bytes | None:
        """Takes a line; returns the data of the event that it ends, if it ends one with data."""
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data = []
        return event


def _lines(received: bytes) -> list[bytes]:
    """Lines without their ends; the last one has not ended, and is empty where all have."""
    lines = received.splitlines()
    if received.endswith((b"\n", b"\r")):
        lines.append(b"")
    return lines
