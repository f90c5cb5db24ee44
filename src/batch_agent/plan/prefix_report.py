"""Prefix report of a plan: how many tokens its prompts share, and what prevents sharing."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.agent_config import AgentConfig
from ..core.run_reports import Finding, PrefixReport
from ..core.schema import is_model
from ..core.spec import BatchSpec
from .compile import prefix_chars
from .layout import CHARS_PER_TOKEN, Layout, PrefixSharing, default_layout
from .lint import find_prefix_breaks
from .template import BadInput


def prefix_report(
    spec: BatchSpec,
    config: AgentConfig,
    layout: Layout,
    rows: Sequence[Any],
    total: int | None,
    chars_per_token: float | None,
    inline_tools: tuple[str, ...] = (),
) -> PrefixReport:
    """Prefix report of a run. `rows`: the inputs, or the first ones if no more are known. `chars_per_token`: None if
    unknown. `inline_tools`: as in the report."""
    scale = chars_per_token or CHARS_PER_TOKEN
    prefix = prefix_chars(config.prompt)
    sharing = layout.sharing or _estimate_from_first(layout, rows, total or 1)
    chars = sharing.total + sharing.rows * prefix
    shared = sharing.shared + (sharing.rows - 1) * prefix
    return PrefixReport(
        agents=total,
        shared_tokens=round((prefix + len(layout.lead)) / scale),
        prompt_tokens=round(chars / sharing.rows / scale),
        diverges_at=_divergence(layout),
        groups=sharing.groups,
        predicted=None if total is None else shared / max(1, chars),
        is_calibrated=chars_per_token is not None,
        findings=_findings(spec, config, layout, rows),
        inline_tools=inline_tools,
    )


def _findings(spec: BatchSpec, config: AgentConfig, layout: Layout, rows: Sequence[Any]) -> tuple[Finding, ...]:
    fields = layout.template.fields
    found = find_prefix_breaks(
        config.prompt.system,
        default_layout(layout.template).lead,  # without constants from the inputs
        config.prompt.tools,
        [_as_mapping(row, fields) for row in rows],
        layout.varying,
        unordered_tools=not isinstance(spec.tools, tuple) and len(spec.tools) > 1,
        keeps_preamble=not spec.prefix.strip_preamble,
    )
    # If fields are free, the layout does not put an ID first.
    return tuple(each for each in found if each.kind != "leading_id" or not layout.template.is_free)


def _estimate_from_first(layout: Layout, rows: Sequence[Any], count: int) -> PrefixSharing:
    """Estimate for when only the first input is known: assumes that all others are like it."""
    lead = len(layout.lead)
    try:
        own = len(layout.task(0, rows[0])[0]) if rows else lead
    except BadInput:
        own = lead
    return PrefixSharing(count, count * own, (count - 1) * lead, 0)


def _divergence(layout: Layout) -> str | None:
    if not layout.varying:
        return None
    before = " ".join(layout.lead.split())[-40:]
    return f"the field {{{layout.varying[0]}}}" + (f", after {before!r}" if before else "")


def _as_mapping(value: Any, fields: Sequence[str]) -> Mapping[str, Any]:
    if type(value) is dict or isinstance(value, Mapping):
        return value
    return dict(value) if is_model(value) else dict.fromkeys(fields, value)
