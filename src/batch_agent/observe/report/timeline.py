"""Every agent's life: when it generated, ran tools and waited."""

from array import array
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from .activity import ABSENT, DONE, GENERATING, TOOLS, WAITING, Activity

FAILED, ANSWERED, UNDER_WAY = 0, 1, 2
_CODES = (0, 0, 1, 2, 0)
"""Of what an agent does, as the page knows it; nothing is a gap."""


class Timeline:
    """A row for each agent, in the order of their beginnings, in columns: an agent takes about a hundred bytes. Times
    of segments are whole hundredths of a second. What the parts of a long input do is done by their agent: it
    generates while any of them does."""

    def __init__(self) -> None:
        self.stage = array("H")
        self.index = array("q")
        self.outcome = bytearray()
        self.seen = array("H")
        """The last process that had to do with the agent; 0 once it has left for another worker."""
        self.recalled = array("H")
        """The last process that had its answer from the checkpoint; 0: none."""
        self.doing = bytearray()
        self.activity = Activity()
        self.process = 0
        self._start = array("q")
        self._since = array("q")
        self._ended = array("q")
        self._generating = array("q")
        self._calling = array("q")
        self._numbers = array("q")
        self._segments: list[bytearray] = []

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, at: float, stage: int, index: int) -> int:
        """A new row."""
        now = round(at * 100)
        self.stage.append(stage)
        self.index.append(index)
        self.outcome.append(UNDER_WAY)
        self.doing.append(ABSENT)
        for column in (self._start, self._since, self._ended):
            column.append(now)
        for column in (self._generating, self._calling, self._numbers):
            column.append(0)
        self.seen.append(self.process)
        self.recalled.append(0)
        self._segments.append(bytearray())
        return len(self._segments) - 1

    def starts(self, at: float, row: int, index: int) -> None:
        """Also one that was done: it failed, and begins anew."""
        self.index[row], self.seen[row], self.outcome[row] = index, self.process, UNDER_WAY
        self._do(at, row, WAITING)

    def generates(self, at: float, row: int, more: int) -> None:
        """A turn begins (1) or ends (-1), in whatever way."""
        self._generating[row] = max(0, self._generating[row] + more)
        self._look(at, row)

    def calls(self, at: float, row: int, more: int) -> None:
        """Tools begin (1) or end (-1)."""
        self._calling[row] = max(0, self._calling[row] + more)
        self._look(at, row)

    def ends(self, at: float, row: int, outcome: int) -> None:
        self.seen[row], self.outcome[row] = self.process, outcome
        self._generating[row] = self._calling[row] = 0
        self._do(at, row, DONE)

    def leaves(self, at: float, row: int) -> None:
        """Another worker has it, and maybe for somebody else: nothing more may be heard of it. One that is done stays
        as it is."""
        if self.outcome[row] == UNDER_WAY:
            self.seen[row] = self._generating[row] = self._calling[row] = 0
            self._do(at, row, ABSENT)

    def begins_process(self, at: float) -> None:
        """Whatever was under way in the one before ended with it."""
        self.process += 1
        for row, doing in enumerate(self.doing):
            if doing in (WAITING, GENERATING, TOOLS):
                self._generating[row] = self._calling[row] = 0
                self._do(at, row, ABSENT)

    def as_json(self, at: float, rows: Iterable[int]) -> dict[str, Any]:
        """These rows, as of this time."""
        now, chosen = round(at * 100), list(rows)
        encoded = bytearray()
        for row in chosen:
            code = _CODES[self.doing[row]]
            _put(encoded, self._numbers[row] + bool(code))
            encoded += self._segments[row]
            if code:
                self._put_segment(encoded, row, code, now)
        return {
            "stage": [self.stage[row] for row in chosen],
            "index": [self.index[row] for row in chosen],
            "ok": [self.outcome[row] for row in chosen],
            "start": [self._start[row] for row in chosen],
            "segments": b64encode(encoded).decode(),
        }

    def _look(self, at: float, row: int) -> None:
        if self.doing[row] == DONE:
            return  # a straggler of an agent that timed out
        self._do(at, row, GENERATING if self._generating[row] else TOOLS if self._calling[row] else WAITING)

    def _do(self, at: float, row: int, kind: int) -> None:
        before = self.doing[row]
        if before == kind:
            return
        now = round(at * 100)
        code = _CODES[before]
        if code:
            self._put_segment(self._segments[row], row, code, now)
            self._numbers[row] += 1
            self._ended[row] = now
        self._since[row] = now
        self.doing[row] = kind
        self.activity.move(at, before, kind)

    def _put_segment(self, into: bytearray, row: int, code: int, now: int) -> None:
        """What it does until now."""
        since = self._since[row]
        into.append(code)
        _put(into, since - self._ended[row])
        _put(into, now - since)


def _put(into: bytearray, number: int) -> None:
    """As a varint: seven bits in each byte, the lowest first."""
    while number > 127:
        into.append(number & 127 | 128)
        number >>= 7
    into.append(number)
