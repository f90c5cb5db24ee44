"""Dashboard of a run as lines for a terminal of a given size."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from ...core.fast_dataclass import dataclass
from ..sanitize import sanitize
from .state import LiveStage, LiveState
from .view_rows import Row, Segment, Tone, clock, errors, progress, results, rows, title

_STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "busy": "cyan", "quiet": "dim"}
_LABEL_WIDTH = 11
_GAP = "  "
_MIN_BAR = 6
_TITLE, _STAGE = 100, 95
_ERRORS, _RESULTS = (45, 24, 23, 22, 21), (25, 8, 7, 6, 5, 4, 3, 2)
"""Weights of the lines of a list. Heavier lines are kept if space is short."""


def render(state: LiveState, seconds: float, width: int, height: int) -> list[Text]:
    """Renders at most `height` lines of at most `width` cells, dropping the least important lines first. `seconds`:
    time since the start of the run. Names, answers and errors are sanitized."""
    if not state.has_started:
        return [_truncated(Text(sanitize(state.notice) or "Connecting ...", "cyan"), width)][:height]
    lines = [_Line(_TITLE, _title(state, seconds, width)), *_stages(state, width)]
    lines += [_Line(row.weight, _row(row, width)) for row in rows(state)]
    lines += _list_lines("errors", list(errors(state)), _ERRORS)
    lines += _list_lines("latest", list(results(state)), _RESULTS)
    return [_truncated(line.text, width) for line in _heaviest(lines, height)]


@dataclass(frozen=True, slots=True)
class _Line:
    weight: int
    text: Text


def _heaviest(lines: Sequence[_Line], height: int) -> list[_Line]:
    """The heaviest lines, in their original order; of equal weights, the first."""
    heaviest = sorted(range(len(lines)), key=lambda index: -lines[index].weight)[: max(0, height)]
    return [lines[index] for index in sorted(heaviest)]


def _title(state: LiveState, seconds: float, width: int) -> Text:
    """Names on the left, truncated if needed, and the time on the right."""
    right = _fitting(clock(state, seconds), width)
    room = max(0, width - right.cell_len - len(_GAP))
    left = _truncated(Text(title(state), "bold"), room)
    return Text.assemble(left, " " * (width - left.cell_len - right.cell_len), right)


def _stages(state: LiveState, width: int) -> Iterator[_Line]:
    """One line per stage. Stages with agents in progress weigh more."""
    room = min(max((cell_len(sanitize(name)) for name in state.stages), default=0), max(4, width // 4))
    for name, stage in state.stages.items():
        is_busy = len(stage.agents) > 0 or not state.is_flow
        yield _Line(_STAGE + is_busy, _stage(name, stage, room, width))


def _stage(name: str, stage: LiveStage, room: int, width: int) -> Text:
    head = Text()
    if room:
        label = Text(sanitize(name), "bold")
        label.truncate(room, overflow="ellipsis", pad=True)
        head.append(label).append(" ")
    numbers = _fitting(progress(name, stage), max(0, width - head.cell_len))
    bar = width - head.cell_len - numbers.cell_len - len(_GAP)
    if bar >= _MIN_BAR:
        head.append(_bar(stage, min(bar, 60)))
        head.append(_GAP)
    return head.append(numbers)


def _bar(stage: LiveStage, width: int) -> Text:
    """Bar of answered, failed, running and remaining agents."""
    stats = stage.stats
    parts = ((stats.ok, "green"), (stats.failed, "red"), (len(stage.agents), "cyan"))
    total = max(stage.total or 0, sum(count for count, _ in parts), 1)
    bar, counted, drawn = Text(), 0, 0
    for count, style in parts:
        counted += count
        end = round(counted / total * width)
        bar.append("━" * (end - drawn), style)
        drawn = end
    return bar.append("─" * (width - drawn), "dim")


def _row(row: Row, width: int) -> Text:
    line = Text().append(f"{row.label:<{_LABEL_WIDTH}}", "dim")
    if row.fill is not None and width >= 60:
        line.append(_gauge(row.fill, min(20, width // 6)))
        line.append(_GAP)
    return line.append(_fitting(row.segments, width - line.cell_len))


def _gauge(fill: float, width: int) -> Text:
    filled = round(min(max(fill, 0.0), 1.0) * width)
    return Text.assemble(("━" * filled, "cyan"), ("─" * (width - filled), "dim"))


def _list_lines(heading: str, listed: Sequence[Row], weights: Sequence[int]) -> Iterator[_Line]:
    """At most one line per weight. The first line has the heading as its label."""
    room = max((cell_len(row.label) for row in listed), default=0)
    for at, (row, weight) in enumerate(zip(listed, weights, strict=False)):
        line = Text().append(f"{'' if at else heading:<{_LABEL_WIDTH}}{row.label:>{room}}", "dim")
        for segment in row.segments:
            line.append(_GAP).append(segment.text, _STYLES[segment.tone])
        yield _Line(weight, line)


def _fitting(segments: Iterable[Segment], width: int) -> Text:
    """As many segments as fit, starting with the first, which is truncated if needed."""
    line = Text()
    for segment in segments:
        gap = _GAP if line.cell_len else ""
        if line.cell_len and line.cell_len + len(gap) + cell_len(segment.text) > width:
            break
        line.append(gap).append(segment.text, _STYLES[segment.tone])
    return _truncated(line, width)


def _truncated(line: Text, width: int) -> Text:
    line.truncate(max(0, width), overflow="ellipsis")
    return line
