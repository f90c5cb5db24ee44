"""Formatting of durations, counts, rates and amounts."""

from collections.abc import Mapping

from ...core.results import AgentStatus

_STATUSES: dict[AgentStatus, str] = {
    "answered": "answered",
    "failed": "failed",
    "running": "running",
    "interrupted": "interrupted",
    "not_started": "not started",
}


def duration(seconds: float) -> str:
    """Formats a duration: 42 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: int, what: str) -> str:
    """Formats a count: 1 agent, 2,000 agents."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def status_counts(counts: Mapping[AgentStatus, int]) -> str:
    """Formats counts by status: 593 answered, 7 failed, 400 not started. Mentions agents without a result only if there
    are any."""
    shown = ("answered", "failed")
    return ", ".join(
        f"{counts.get(each, 0):,} {name}" for each, name in _STATUSES.items() if each in shown or counts.get(each)
    )


def per_time(rate: float) -> str:
    """Formats a rate: 12.3/s, or 4.5/min below one per second."""
    return f"{rate:,.1f}/s" if rate >= 1 or rate == 0 else f"{rate * 60:.1f}/min"


def rounded(count: float) -> str:
    """Formats with three significant digits: 950, 12.3k, 4.56M."""
    if count < 1_000:
        return f"{count:.0f}"
    for size, letter in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if count < 999.5 * size or letter == "G":
            return f"{count / size:.{2 if count < 9.995 * size else 1 if count < 99.95 * size else 0}f}{letter}"
    raise AssertionError("unreachable")


def prefix_worker(worker: str, text: str) -> str:
    """The text with its worker's name in front. This process has an empty name, so its text is unchanged."""
    return f"{worker}: {text}" if worker else text


def one_line(text: str, max_length: int) -> str:
    """The beginning of a text, on one line."""
    start = text[: 4 * max_length] if len(text) > max_length else text
    return truncate(" ".join(start.split()), max_length)


def truncate(text: str, max_length: int) -> str:
    """The beginning of a text, with the full length if it was cut."""
    return text if len(text) <= max_length else f"{text[:max_length]} ... ({len(text):,} characters)"
