"""Prefix sharing of prompts as lines of text."""

from collections.abc import Iterator

from ...core.run_reports import PrefixReport


def prefix_lines(report: PrefixReport) -> list[str]:
    """Lines before a run: the predicted sharing, and a line per finding."""
    return [*_expected(report), *(f"! {finding}" for finding in report.findings)]


def prefix_outcome_line(report: PrefixReport) -> str | None:
    """Line after a run: predicted and measured cache hits."""
    if report.predicted is None or report.measured is None:
        return None
    return (
        f"First prompts: {report.predicted:.0%} predicted from the prefix cache, {report.measured:.0%} measured"
        f"{_at_most(report)}."
    )


def _expected(report: PrefixReport) -> Iterator[str]:
    if report.agents == 1:
        return
    if report.diverges_at is None:
        yield "Prompts: identical for all agents."
        return
    about = "" if report.is_calibrated else "about "
    share = report.shared_tokens / max(1, report.prompt_tokens)
    line = f"Prompts: {about}{report.shared_tokens:,} of {report.prompt_tokens:,} tokens are shared by all"
    line += f" ({share:.0%}); they diverge at {report.diverges_at}."
    if report.groups:
        line += f" {report.groups:,} {'groups share' if report.groups > 1 else 'group shares'} more."
    if report.predicted is not None:
        line += f" Predicted prefix cache hits: {report.predicted:.0%}{_at_most(report)}."
    yield line


def _at_most(report: PrefixReport) -> str:
    return f" (sharing allows {report.sharing:.1f}x)" if report.sharing is not None else ""
