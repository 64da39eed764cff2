"""Lines of a stream that nobody vouches for: in linear time, and never more than one line in memory."""

from __future__ import annotations


class Lines:
    """Takes a stream chunk by chunk. Of a line longer than `longest` bytes the beginning is kept and the rest is dropped."""

    def __init__(self, longest: int):
        self._longest = longest
        self._line = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in this chunk, without their newlines."""
        *ended, rest = data.split(b"\n")
        if ended:
            self._add(ended[0])
            ended = [bytes(self._line), *(line[: self._longest] for line in ended[1:])]
            self._line.clear()
        self._add(rest)
        return ended

    @property
    def rest(self) -> bytes:
        """What came after the last newline."""
        return bytes(self._line)

    def take_rest(self) -> bytes:
        """The same, and begins a new line."""
        rest = self.rest
        self._line.clear()
        return rest

    def _add(self, piece: bytes) -> None:
        self._line += piece[: self._longest - len(self._line)]
