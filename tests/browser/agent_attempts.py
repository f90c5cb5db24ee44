"""The lives of agents: how they come about, and how a view of a run has them."""

import base64
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import Any

Segment = tuple[int, int, int]
"""What an agent did (0 waited, 1 generated, 2 ran tools), from when to when, in 1/100 s."""

_POINTS = 240


@dataclass(frozen=True, slots=True)
class Life:
    """One agent on the timeline."""

    stage: int
    index: int
    ok: int
    start: int
    segments: Sequence[Segment]

    @property
    def end(self) -> int:
        return self.segments[-1][2] if self.segments else self.start


@dataclass(slots=True)
class Clock:
    """Agents that take each other's places, so many at once."""

    chance: random.Random
    lanes: list[int]
    scale: float

    def lives(self, stage: int, count: int, turns: int, failing: float) -> list[Life]:
        heapify(self.lanes)
        return [self._life(stage, index, turns, failing) for index in range(count)]

    def _life(self, stage: int, index: int, turns: int, failing: float) -> Life:
        start = at = self.lanes[0]
        segments: list[Segment] = []
        for turn in range(self.chance.randint(1, turns)):
            for kind, typical in ((0, 30), (1, 120), (2, 60 if turn < turns - 1 else 0)):
                length = round(self.chance.lognormvariate(0, 0.6) * typical * self.scale) if typical else 0
                if length and kind:
                    segments.append((kind, at, at + length))
                at += length
        heapreplace(self.lanes, at)
        return Life(stage, index, 0 if self.chance.random() < failing else 1, start, segments)


def activity(lives: Sequence[Life], seconds: float) -> dict[str, list[Any]]:
    """How many did what, at equal distances in time."""
    at = [seconds * point / _POINTS for point in range(_POINTS + 1)]
    counts = {kind: [0] * (_POINTS + 2) for kind in (0, 1, 2)}
    done = [0] * (_POINTS + 1)
    whole = seconds or 1
    for life in lives:
        for kind, start, end in [(0, life.start, life.end), *(each for each in life.segments if each[0])]:
            first, last = math.ceil(start / 100 / whole * _POINTS), math.ceil(end / 100 / whole * _POINTS)
            last = _POINTS + 1 if life.ok == 2 and end == life.end else max(first, last)
            counts[kind][first] += 1
            counts[kind][last] -= 1
            if kind:  # and so does not wait
                counts[0][first] -= 1
                counts[0][last] += 1
        if life.ok != 2:
            done[math.ceil(life.end / 100 / whole * _POINTS)] += 1
    waiting, generating, tools = (list(accumulate(counts[kind][:-1])) for kind in (0, 1, 2))
    return {"at": at, "generating": generating, "tools": tools, "waiting": waiting, "done": list(accumulate(done))}


def timeline(lives: Sequence[Life]) -> dict[str, Any]:
    """As the view has them."""
    packed = bytearray()
    for life in lives:
        packed += _varint(len(life.segments))
        clock = life.start
        for kind, start, end in life.segments:
            packed += _varint(kind) + _varint(start - clock) + _varint(end - start)
            clock = end
    return {
        "stage": [life.stage for life in lives],
        "index": [life.index for life in lives],
        "ok": [life.ok for life in lives],
        "start": [life.start for life in lives],
        "segments": base64.b64encode(packed).decode(),
    }


def _varint(value: int) -> bytes:
    packed = bytearray()
    while value > 127:
        packed.append(value & 127 | 128)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def lives_of(timeline: dict[str, Any]) -> list[Life]:
    """The timeline, read back."""
    packed = iter(base64.b64decode(timeline["segments"]))
    columns = (timeline[name] for name in ("stage", "index", "ok", "start"))
    lives = []
    for stage, index, ok, start in zip(*columns, strict=True):
        clock, segments = start, []
        for _ in range(_number(packed)):
            kind, gap, length = _number(packed), _number(packed), _number(packed)
            segments.append((kind, clock + gap, clock + gap + length))
            clock += gap + length
        lives.append(Life(stage, index, ok, start, segments))
    return lives


def _number(packed: Iterable[int]) -> int:
    value = shift = 0
    for byte in packed:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value


def cut_off(life: Life, at: int) -> Life:
    """Under way at that time."""
    if life.end <= at:
        return life
    kept = [(kind, start, min(end, at)) for kind, start, end in life.segments if start < at]
    if not kept or kept[-1][2] < at:
        kept.append((0, kept[-1][2] if kept else life.start, at))
    return Life(life.stage, life.index, 2, life.start, kept)
