"""A board in the lines of a terminal: as many as there is room for, none wider than it."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from ...core.fast_dataclass import dataclass
from ..sanitize import sanitize
from .state import LiveStage, LiveState
from .view_rows import Bit, Row, Tone, clock, errors, progress, results, rows, title

_STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "busy": "cyan", "quiet": "dim"}
_LABEL = 11
_GAP = "  "
_LEAST_BAR = 6
_TITLE, _STAGE = 100, 95
_ERRORS, _RESULTS = (45, 24, 23, 22, 21), (25, 8, 7, 6, 5, 4, 3, 2)
"""How much the lines of a list weigh, beside the rows."""


def render(board: LiveState, seconds: float, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` cells; what matters least is left out first. `seconds`: since the
    run began. Names, answers and errors are shown so that they cannot steer the terminal."""
    if not board.has_begun:
        return [_cut(Text(sanitize(board.notice) or "Connecting ...", "cyan"), width)][:height]
    lines = [_Line(_TITLE, _title(board, seconds, width)), *_stages(board, width)]
    lines += [_Line(row.weight, _row(row, width)) for row in rows(board)]
    lines += _listed("errors", list(errors(board)), _ERRORS)
    lines += _listed("latest", list(results(board)), _RESULTS)
    return [_cut(line.text, width) for line in _chosen(lines, height)]


@dataclass(frozen=True, slots=True)
class _Line:
    weight: int
    text: Text


def _chosen(lines: Sequence[_Line], height: int) -> list[_Line]:
    """The heaviest, in the order in which they stand; of equally heavy ones, the first."""
    heaviest = sorted(range(len(lines)), key=lambda at: -lines[at].weight)[: max(0, height)]
    return [lines[at] for at in sorted(heaviest)]


def _title(board: LiveState, seconds: float, width: int) -> Text:
    """The time stays at the right end, however long the names are."""
    right = _fitting(clock(board, seconds), width)
    room = max(0, width - right.cell_len - len(_GAP))
    left = _cut(Text(title(board), "bold"), room)
    return Text.assemble(left, " " * (width - left.cell_len - right.cell_len), right)


def _stages(board: LiveState, width: int) -> Iterator[_Line]:
    """Those that have something to do stay where there is little room."""
    room = min(max((cell_len(sanitize(name)) for name in board.stages), default=0), max(4, width // 4))
    for name, stage in board.stages.items():
        is_busy = len(stage.agents) > 0 or not board.is_flow
        yield _Line(_STAGE + is_busy, _stage(name, stage, room, width))


def _stage(name: str, stage: LiveStage, room: int, width: int) -> Text:
    head = Text()
    if room:
        label = Text(sanitize(name), "bold")
        label.truncate(room, overflow="ellipsis", pad=True)
        head.append(label).append(" ")
    numbers = _fitting(progress(name, stage), max(0, width - head.cell_len))
    bar = width - head.cell_len - numbers.cell_len - len(_GAP)
    if bar >= _LEAST_BAR:
        head.append(_bar(stage, min(bar, 60)))
        head.append(_GAP)
    return head.append(numbers)


def _bar(stage: LiveStage, width: int) -> Text:
    """Answered, failed, under way and to come, one after the other."""
    tally = stage.tally
    parts = ((tally.ok, "green"), (tally.failed, "red"), (len(stage.agents), "cyan"))
    total = max(stage.of or 0, sum(count for count, _ in parts), 1)
    bar, counted, drawn = Text(), 0, 0
    for count, style in parts:
        counted += count
        end = round(counted / total * width)
        bar.append("━" * (end - drawn), style)
        drawn = end
    return bar.append("─" * (width - drawn), "dim")


def _row(row: Row, width: int) -> Text:
    line = Text().append(f"{row.label:<{_LABEL}}", "dim")
    if row.full is not None and width >= 60:
        line.append(_gauge(row.full, min(20, width // 6)))
        line.append(_GAP)
    return line.append(_fitting(row.bits, width - line.cell_len))


def _gauge(full: float, width: int) -> Text:
    filled = round(min(max(full, 0.0), 1.0) * width)
    return Text.assemble(("━" * filled, "cyan"), ("─" * (width - filled), "dim"))


def _listed(heading: str, listed: Sequence[Row], weights: Sequence[int]) -> Iterator[_Line]:
    """As many as there are weights. The heading stands where rows have their label, before the first."""
    room = max((cell_len(row.label) for row in listed), default=0)
    for at, (row, weight) in enumerate(zip(listed, weights, strict=False)):
        line = Text().append(f"{'' if at else heading:<{_LABEL}}{row.label:>{room}}", "dim")
        for bit in row.bits:
            line.append(_GAP).append(bit.text, _STYLES[bit.tone])
        yield _Line(weight, line)


def _fitting(bits: Iterable[Bit], width: int) -> Text:
    """As many of them as fit, from the first on; the first one is cut rather than left out."""
    line = Text()
    for bit in bits:
        gap = _GAP if line.cell_len else ""
        if line.cell_len and line.cell_len + len(gap) + cell_len(bit.text) > width:
            break
        line.append(gap).append(bit.text, _STYLES[bit.tone])
    return _cut(line, width)


def _cut(line: Text, width: int) -> Text:
    line.truncate(max(0, width), overflow="ellipsis")
    return line
