"""Prefix sharing of prompts as lines of text."""

from collections.abc import Iterator

from ...core.run_reports import PrefixReport, SharedResults
from .text_format import plural

_MIN_GAP = 0.1
"""Difference between the expected and the measured share of cache hits above which a line is shown."""
_MIN_MISSED_TOKENS = 10_000


def prefix_lines(report: PrefixReport) -> list[str]:
    """The prefixes that prompts share and could share, and one line per finding."""
    return [*_shared(report), *_inline(report), *_findings(report)]


def prefix_notes(report: PrefixReport) -> list[str]:
    """Lines shown before a run; empty if nothing keeps prompts from sharing more."""
    return [*_shared(report), *_findings(report)] if report.findings else []


def prefix_outcome_line(report: PrefixReport) -> str | None:
    """Line shown after a run if the server's cache served much less of the first prompts than it could."""
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


def shared_results_line(shared: SharedResults) -> str:
    """Line about tool results that were placed before the agents' own text, or about what that would have saved."""
    if not shared.placed:
        if not shared.references:
            return "Shared results: none was placed first, as that would have saved nothing."
        return (
            f"Shared results: {_results(shared)} read by {plural(shared.agents, 'agent')}, and computed again for each "
            f"of them. Placed first, {shared.saved_share:.0%} fewer prompt tokens are computed (about "
            f'{shared.saved_tokens:,}): set shared_results="auto".'
        )
    more = shared.saved_tokens < 0
    computed = f"about {abs(shared.saved_tokens):,} prompt tokens ({abs(shared.saved_share):.0%})"
    line = (
        f"Shared results: {_results(shared)} placed before the own text of {plural(shared.agents, 'agent')}; "
        f"{computed} {'were computed in addition' if more else 'did not have to be computed'}"
    )
    if shared.stored_once:
        line += f", and the KV cache held up to {shared.stored_once:,} tokens less"
    return f"{line}."


def _findings(report: PrefixReport) -> Iterator[str]:
    return (f"! {finding}" for finding in report.findings)


def _results(shared: SharedResults) -> str:
    return f"{plural(shared.references, 'tool result')} {'was' if shared.references == 1 else 'were'}"


def _inline(report: PrefixReport) -> Iterator[str]:
    if report.shared_results is not None:
        yield shared_results_line(report.shared_results)
    elif report.inline_tools and report.agents != 1:
        yield (
            f"Tool results: agents share those of {', '.join(report.inline_tools)}, but they stand behind each agent's "
            "own text, where the server computes them again. If several agents read the same ones, "
            'shared_results="auto" places them first; a plan with a canary predicts what that saves.'
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
