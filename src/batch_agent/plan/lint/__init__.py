"""Linter of prompts: before any request, finds what prevents a server's prefix cache from sharing them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.messages import PREAMBLE, ToolSpec
from ...core.run_reports import Finding
from .fields import lint_fields
from .volatile_text import MAX_CHECKED_CHARS, TEXT_KINDS, first_match, is_random, lint_text, quote, text_finding

MAX_FINDINGS = 12
_MAX_ROWS = 200
_RUN_ROWS = 4
_HEADER_LINES = 10
_MAX_HEADER_CHARS = 500
_HEADER = re.compile(
    r"[ \t]{0,8}(?P<name>x-[a-z0-9-]{1,60}|(?:session|request|trace|correlation|conversation|invocation)(?:[-_ ]?id)?)"
    r"[ \t]{0,8}[:=][ \t]{0,8}(?P<id>[^\s].{0,400})",
    re.IGNORECASE,
)


def find_prefix_breaks(
    system: str,
    lead: str,
    tools: Sequence[ToolSpec],
    rows: Sequence[Mapping[str, Any]],
    order: Sequence[str],
    *,
    unordered_tools: bool = False,
    keeps_preamble: bool = False,
) -> tuple[Finding, ...]:
    """Findings in the order of the prompt: the system prompt, the tools, the task, then the fields in `order`.

    `system`: the system prompt as it is sent. `lead`: text at the beginning of every task. `order`: names of the fields
    that differ between `rows`, in the order of the task. Of many rows and long texts, only a sample is checked."""
    sample = _sample(rows)
    found = (
        *_in_system(system, keeps_preamble),
        *_in_tools(tools, unordered_tools),
        *lint_text("The text with which every task begins", lead),
        *lint_fields(order, sample),
    )
    return found[:MAX_FINDINGS]


def _sample(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sample of evenly spread runs of rows. Equal values are often adjacent, and a run then contains two of them."""
    if len(rows) <= _MAX_ROWS:
        return list(rows)
    runs = _MAX_ROWS // _RUN_ROWS
    starts = (number * (len(rows) - _RUN_ROWS) // (runs - 1) for number in range(runs))
    return [rows[start + step] for start in starts for step in range(_RUN_ROWS)]


def _in_system(system: str, keeps_preamble: bool) -> Iterator[Finding]:
    text = system[:MAX_CHECKED_CHARS]
    preamble = PREAMBLE.match(text)
    if preamble:
        if keeps_preamble:
            line = preamble[0].strip().partition("\n")[0]
            yield _header(line, "Set strip_preamble=True.")
        text = text[preamble.end() :]
    lines = text.split("\n")
    headers = [line for line in lines[:_HEADER_LINES] if _is_header(line)]
    if headers:
        yield _header(
            headers[0].strip(), "Remove it: strip_preamble does not recognize it, or only removes it from the start."
        )
        text = "\n".join([line for line in lines[:_HEADER_LINES] if not _is_header(line)] + lines[_HEADER_LINES:])
    yield from lint_text("The system prompt", text)


def _header(line: str, advice: str) -> Finding:
    return Finding(
        "session_header", f"The system prompt has a header that changes in every session: {quote(line)}.", advice
    )


def _is_header(line: str) -> bool:
    match = _HEADER.fullmatch(line[:_MAX_HEADER_CHARS].rstrip())
    if match is None:
        return False
    name, value = match["name"].lower(), match["id"].strip("\"'`<>")
    if name.startswith("x-") and name.endswith("-header"):
        return True
    has_digit = any(map(str.isdigit, value))
    return " " not in value and (is_random(value) or (name.startswith("x-") and name.endswith("id") and has_digit))


def _in_tools(tools: Sequence[ToolSpec], unordered: bool) -> Iterator[Finding]:
    if unordered and len(tools) != 1:  # no tools here means action mode: the system prompt describes them
        problem = "The tools were given as a set, so their order differs in every process."
        yield Finding("tool_order", problem, "Pass them as a list.")
    for kind, what, patterns in TEXT_KINDS:
        found = [(tool.name, text) for tool in tools if (text := first_match(tool.description, patterns))]
        if found:
            name, text = found[0]
            others = f" (and of {len(found) - 1} more)" if len(found) > 1 else ""
            yield text_finding(kind, f"The description of the tool {quote(name)}{others}", what, text)
