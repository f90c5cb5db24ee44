"""What several endpoints can do together."""

from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import SpecError
from ..core.traits import Traits


def together(urls: Sequence[str], each: Sequence[Traits | None]) -> Traits:
    """What all can do, of those that are there. Raises SpecError for different models."""
    known = [(url, traits) for url, traits in zip(urls, each, strict=True) if traits is not None]
    first_url, first = known[0]
    for url, traits in known:
        if traits.model != first.model:
            raise SpecError(
                f"The endpoints must serve the same model: {first_url} serves {first.model!r}, {url} {traits.model!r}. "
                "Name one that all serve with model=..., or run each on its own."
            )
    all_traits = [traits for _, traits in known]
    return replace(
        first,
        native_tools=all(traits.native_tools for traits in all_traits),
        json_schema=all(traits.json_schema for traits in all_traits),
        json_schema_beside_tools=all(traits.json_schema_beside_tools for traits in all_traits),
        inflight=sum(traits.inflight for traits in all_traits) * len(urls) // len(known),
        fixed_inflight=all(traits.fixed_inflight for traits in all_traits),
        context_tokens=_least([traits.context_tokens for traits in all_traits]),
        kv_tokens=_sum([traits.kv_tokens for traits in all_traits]),
        kv_running_tokens=_sum([traits.kv_running_tokens for traits in all_traits]),
        strict_schema=any(traits.strict_schema for traits in all_traits),
        keeps_agents=True,  # at least where each agent was
        seen=(f"{len(known)} of {len(urls)} endpoints", *first.seen),
    )


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)
