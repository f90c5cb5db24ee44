"""HTML table of results for notebooks."""

from collections.abc import Sequence
from html import escape
from itertools import islice
from typing import Any

from ..core.results import AgentResult
from .columns import columns_of
from .result_rows import cell

_MAX_ROWS = 10
_MAX_COLUMNS = 12
_MAX_CELL_CHARS = 80
_HIDDEN = frozenset({"key", "text", "cached_tokens"})
_STYLE = (
    "<style>.batch-agent td, .batch-agent th "
    "{text-align: left; vertical-align: top; max-width: 24em; overflow-wrap: anywhere}</style>"
)


def as_html(results: Sequence[AgentResult], summary: str) -> str:
    """The summary line and the first rows of the table. All values are escaped."""
    rows = results[:_MAX_ROWS]
    filled = ((name, values) for name, values in columns_of(rows).items() if _is_shown(name, values))
    columns = dict(islice(filled, _MAX_COLUMNS))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_shown, row))}</tr>" for row in zip(*columns.values(), strict=True))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    more = f"<p>and {len(results) - len(rows):,} more</p>" if len(results) > len(rows) else ""
    return f'<div class="batch-agent">{_STYLE}<p>{escape(summary)}</p>{table}{more}</div>'


def _is_shown(name: str, values: Sequence[Any]) -> bool:
    return name not in _HIDDEN and any(value is not None for value in values)


def _shown(value: Any) -> str:
    text = str(cell(value))
    short = text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}…"
    return f"<td>{escape(short)}</td>"
