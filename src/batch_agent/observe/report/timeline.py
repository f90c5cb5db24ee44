"""Timeline of every agent, and the number of agents in each state: generating, running tools and waiting."""

from array import array
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

ABSENT, WAITING, GENERATING, TOOLS, DONE = range(5)
"""States of an agent. Absent: it has not started, or not in the current process."""

_FINEST = 0.05
_MAX_BINS = 398
_COLUMNS = (("waiting", WAITING), ("generating", GENERATING), ("tools", TOOLS), ("done", DONE))


class Activity:
    """Time that agents spent in each state, in bins. When there are too many bins, adjacent ones are merged in pairs. A
    state is counted for the rest of its bin and for the whole of a new bin; a later change corrects that."""

    def __init__(self) -> None:
        self._now = [0] * (DONE + 1)
        self._spent: list[list[float]] = [[] for _ in range(DONE + 1)]
        self._width = _FINEST
        self._until = 0.0

    def move(self, at: float, before: int, after: int) -> None:
        """Changes the state of an agent. Times must not decrease."""
        if at >= self._until:
            self._grow(at)
        left = self._until - at
        self._spent[before][-1] -= left
        self._spent[after][-1] += left
        self._now[before] -= 1
        self._now[after] += 1

    def as_json(self, at: float) -> dict[str, list[float]]:
        """Series up to this time. The last point is the current state; the others are averages of their bins."""
        if at >= self._until:
            self._grow(at)
        width, bins = self._width, len(self._spent[0])
        covered = [width] * (bins - 1) + [at - (bins - 1) * width]
        shown = [number for number in range(bins) if covered[number] > width / 1000]
        found = {"at": [*(round(number * width + covered[number] / 2, 3) for number in shown), round(at, 3)]}
        for name, kind in _COLUMNS:
            spent = self._spent[kind].copy()
            spent[-1] -= self._now[kind] * (self._until - at)
            found[name] = [*(round(spent[number] / covered[number], 2) for number in shown), self._now[kind]]
        return found

    def _grow(self, at: float) -> None:
        while at >= self._until:
            if len(self._spent[0]) == _MAX_BINS:
                self._width *= 2
                for spent in self._spent:
                    spent[:] = map(sum, zip(spent[::2], spent[1::2], strict=True))
            for spent, agents in zip(self._spent, self._now, strict=True):
                spent.append(agents * self._width)
            self._until = len(self._spent[0]) * self._width


FAILED, ANSWERED, IN_PROGRESS = 0, 1, 2
_CODES = (0, 0, 1, 2, 0)
"""Segment code of each state; 0 is a gap."""
_ONE_BYTE = 128
"""Varints below this take one byte."""


class Timeline:
    """One row per agent, in the order of their starts, stored in columns of about 100 bytes per agent. Segment times
    are in hundredths of a second. An agent with chunks is generating while any of them is."""

    def __init__(self) -> None:
        self.stage = array("H")
        self.index = array("q")
        self.sample = array("L")
        """Number of the sample of the input."""
        self.outcome = bytearray()
        self.last_process = array("H")
        """Last process of the agent; 0 after it was reassigned to another worker."""
        self.restored_by = array("H")
        """Last process that restored the agent's answer from the checkpoint; 0: none."""
        self.state = bytearray()
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

    def add(self, at: float, stage: int, index: int, sample: int = 0) -> int:
        """Adds a row, and returns its number."""
        now = round(at * 100)
        self.stage.append(stage)
        self.index.append(index)
        self.sample.append(sample)
        self.outcome.append(IN_PROGRESS)
        self.state.append(ABSENT)
        for column in (self._start, self._since, self._ended):
            column.append(now)
        for column in (self._generating, self._calling, self._numbers):
            column.append(0)
        self.last_process.append(self.process)
        self.restored_by.append(0)
        self._segments.append(bytearray())
        return len(self._segments) - 1

    def start(self, at: float, row: int, index: int) -> None:
        """Starts an agent, or restarts one that failed."""
        self.index[row], self.last_process[row], self.outcome[row] = index, self.process, IN_PROGRESS
        self._set_state(at, row, WAITING)

    def add_generating(self, at: float, row: int, more: int) -> None:
        """Notes that a turn starts (1) or ends (-1)."""
        turns = self._generating[row] + more
        self._generating[row] = turns if turns > 0 else 0
        before = self.state[row]
        after = GENERATING if turns > 0 else TOOLS if self._calling[row] else WAITING
        if before != after and before != DONE:  # otherwise it is a late event of an agent that timed out
            self._change(at, row, before, after)

    def add_calling(self, at: float, row: int, more: int) -> None:
        """Notes that tool calls start (1) or end (-1)."""
        calls = self._calling[row] + more
        self._calling[row] = calls if calls > 0 else 0
        before = self.state[row]
        after = GENERATING if self._generating[row] else TOOLS if calls > 0 else WAITING
        if before != after and before != DONE:
            self._change(at, row, before, after)

    def finish(self, at: float, row: int, outcome: int) -> None:
        self.last_process[row], self.outcome[row] = self.process, outcome
        self._generating[row] = self._calling[row] = 0
        self._set_state(at, row, DONE)

    def remove(self, at: float, row: int) -> None:
        """Ends the row of an agent that another worker has taken over, possibly for another client, so there may be no
        more events. Finished agents are not changed."""
        if self.outcome[row] == IN_PROGRESS:
            self.last_process[row] = self._generating[row] = self._calling[row] = 0
            self._set_state(at, row, ABSENT)

    def start_process(self, at: float) -> None:
        """Ends the rows of agents in progress, which ended with the previous process."""
        self.process += 1
        for row, state in enumerate(self.state):
            if state in (WAITING, GENERATING, TOOLS):
                self._generating[row] = self._calling[row] = 0
                self._set_state(at, row, ABSENT)

    def as_json(self, at: float, rows: Iterable[int]) -> dict[str, Any]:
        """The given rows at this time."""
        now, chosen = round(at * 100), list(rows)
        encoded = bytearray()
        for row in chosen:
            code = _CODES[self.state[row]]
            _put(encoded, self._numbers[row] + bool(code))
            encoded += self._segments[row]
            if code:
                since = self._since[row]
                _put_segment(encoded, code, since - self._ended[row], now - since)
        return {
            "stage": [self.stage[row] for row in chosen],
            "index": [self.index[row] for row in chosen],
            **({"sample": [self.sample[row] for row in chosen]} if any(self.sample) else {}),
            "ok": [self.outcome[row] for row in chosen],
            "start": [self._start[row] for row in chosen],
            "segments": b64encode(encoded).decode(),
        }

    def _set_state(self, at: float, row: int, kind: int) -> None:
        before = self.state[row]
        if before != kind:
            self._change(at, row, before, kind)

    def _change(self, at: float, row: int, before: int, after: int) -> None:
        now = round(at * 100)
        code = _CODES[before]
        if code:
            _put_segment(self._segments[row], code, self._since[row] - self._ended[row], now - self._since[row])
            self._numbers[row] += 1
            self._ended[row] = now
        self._since[row] = now
        self.state[row] = after
        self.activity.move(at, before, after)


def _put_segment(into: bytearray, code: int, gap: int, length: int) -> None:
    """Appends a segment: its code, the gap since the previous one, and its length."""
    if gap < _ONE_BYTE and length < _ONE_BYTE:
        into.extend((code, gap, length))
    else:
        into.append(code)
        _put(into, gap)
        _put(into, length)


def _put(into: bytearray, number: int) -> None:
    """Appends a varint: seven bits per byte, the lowest first."""
    while number >= _ONE_BYTE:
        into.append(number & 127 | 128)
        number >>= 7
    into.append(number)
