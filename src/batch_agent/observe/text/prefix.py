"""What prompts share, in lines that people read."""

from collections.abc import Iterator

from ...core.run_reports import PrefixReport


def prefix_lines(report: PrefixReport) -> list[str]:
    """Before a run: what is expected, and each thing that stands in the way."""
    return [*_expected(report), *(f"! {finding}" for finding in report.findings)]


def outcome_line(report: PrefixReport) -> str | None:
    """After it: expected against seen."""
    if report.predicted is None or report.measured is None:
        return None
    return (
        f"First prompts: {report.predicted:.0%} expected from the prefix cache, {report.measured:.0%} seen"
        f"{_at_most(report)}."
    )


def _expected(report: PrefixReport) -> Iterator[str]:
    if report.agents == 1:
        return
    if report.diverges_at is None:
        yield "Prompts: all the same."
        return
    about = "" if report.is_calibrated else "about "
    share = report.shared_tokens / max(1, report.prompt_tokens)
    line = f"Prompts: {about}{report.shared_tokens:,} of {report.prompt_tokens:,} tokens are the same for all"
    line += f" ({share:.0%}); they differ from {report.diverges_at} on."
    if report.groups:
        line += f" {report.groups:,} {'groups share' if report.groups > 1 else 'group shares'} more."
    if report.predicted is not None:
        line += f" Expected from the prefix cache: {report.predicted:.0%}{_at_most(report)}."
    yield line


def _at_most(report: PrefixReport) -> str:
    return f" (sharing allows {report.sharing:.1f}x)" if report.sharing is not None else ""
