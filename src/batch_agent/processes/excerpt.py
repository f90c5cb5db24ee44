"""The little that is kept of what nobody reads."""

_END_BYTES = 4_000


class Excerpt:
    """The beginning and the end of what was written, with the length of what lay between."""

    def __init__(self) -> None:
        self._beginning = b""
        self._end = bytearray()
        self._written = 0

    def add(self, chunk: bytes) -> None:
        self._written += len(chunk)
        room = _END_BYTES - len(self._beginning)
        self._beginning += chunk[:room]
        self._end += chunk[room:]
        del self._end[:-_END_BYTES]

    def __bytes__(self) -> bytes:
        left_out = self._written - len(self._beginning) - len(self._end)
        gap = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return self._beginning + gap + bytes(self._end)

    def __str__(self) -> str:
        return bytes(self).decode(errors="replace")
