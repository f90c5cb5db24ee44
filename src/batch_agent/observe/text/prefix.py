"""Prefix sharing of prompts as lines of text."""

from collections.abc import Iterator

from ...core.run_reports import PrefixReport

_MIN_GAP = 0.1
"""Difference between the expected and the measured share of cache hits that is worth a line."""
_MIN_MISSED_TOKENS = 10_000


def prefix_lines(report: PrefixReport) -> list[str]:
    """What prompts share, and a line per finding."""
    return [*_shared(report), *(f"! {finding}" for finding in report.findings)]


def prefix_notes(report: PrefixReport) -> list[str]:
    """Lines before a run: none if nothing keeps the prompts from sharing more."""
    return prefix_lines(report) if report.findings else []


def prefix_outcome_line(report: PrefixReport) -> str | None:
    """Line after a run in which the server's cache served much less of the first prompts than it could."""
    if report.predicted is None or report.measured is None:
        return None
    gap = report.predicted - report.measured
    if gap < _MIN_GAP or gap * report.prompt_tokens * (report.agents or 0) < _MIN_MISSED_TOKENS:
        return None
    return (
        f"Prefix cache: {report.measured:.0%} of the first prompts came from the server's cache, where "
        f"{report.predicted:.0%} is possible. Check that prefix caching is on and that the cache is large enough "
        "(batch-agent doctor URL)."
    )


def _shared(report: PrefixReport) -> Iterator[str]:
    if report.agents == 1:
        return
    if report.diverges_at is None:
        yield "Prompts: identical for all agents."
        return
    about = "" if report.is_calibrated else "about "
    share = report.shared_tokens / max(1, report.prompt_tokens)
    line = f"Prompts: the first {report.shared_tokens:,} of {about}{report.prompt_tokens:,} tokens are the same for all"
    line += f" agents ({share:.0%}); the first difference is {report.diverges_at}."
    if report.groups:
        line += f" {report.groups:,} {'groups' if report.groups > 1 else 'group'} of agents share more."
    if report.predicted is not None:
        line += f" The server can take {report.predicted:.0%} of all prompt tokens from its prefix cache."
    yield line
