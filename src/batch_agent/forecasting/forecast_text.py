"""Text output of a forecast."""

from ..core.results import dollars
from ..core.run_reports import SharedResults
from ..observe.text.text_format import plural
from .forecast import Comparison, Forecast


def forecast_lines(forecast: Forecast) -> list[str]:
    usage, behaviour = forecast.usage, forecast.behaviour
    shared = "" if forecast.shared is None else f", {forecast.shared:.0%} of first prompts shared"
    written = f", {usage.all_written:,} written to the provider's cache" if usage.all_written else ""
    source = f" ({forecast.prices})" if forecast.prices else ""
    lines = [
        f"agents   {forecast.agents:,} of {behaviour.turns:.1f} turns, {behaviour.output:,.0f} output tokens, "
        f"{behaviour.tool_seconds:.1f} s of tools each",
        f"prompts  {usage.input:,} tokens, {usage.cached:,} cached, {forecast.computed:,} computed{written}{shared}",
        f"output   {usage.output:,} tokens",
    ]
    if forecast.shared_results is not None:
        lines.append(_shared_results(forecast.shared_results))
    if forecast.residents is not None:
        lines.append(f"memory   contexts of {forecast.residents:,} agents fit the KV cache at once")
    duration = "unknown" if forecast.seconds is None else _duration(forecast.seconds)
    lines.append(f"time     {duration}, with up to {forecast.inflight:,} requests in flight")
    lines.append(
        f"cost     {'unknown' if forecast.cost is None else dollars(forecast.cost)}{_by_lane(forecast)}{source}"
    )
    return [*lines, *(f"- {each}" for each in forecast.basis)]


def _by_lane(forecast: Forecast) -> str:
    """The cost in each lane, if there are several."""
    costs = [f"{lane} {dollars(cost)}" for lane, cost in forecast.costs]
    return f" ({', '.join(costs)})" if len(costs) > 1 else ""


def _shared_results(shared: SharedResults) -> str:
    results, agents = plural(shared.references, "tool result"), plural(shared.agents, "agent")
    if shared.placed:
        more = "more" if shared.saved_tokens < 0 else "fewer"
        return (
            f"results  {results} placed first for {agents}: {abs(shared.saved_tokens):,} {more} prompt tokens are "
            f"computed ({abs(shared.saved_share):.0%})"
        )
    if not shared.references:
        return "results  none placed first: that would save nothing"
    return (
        f"results  {results} {'is' if shared.references == 1 else 'are'} read by {agents}; placed first, "
        f'{shared.saved_share:.0%} fewer prompt tokens are computed: set shared_results="auto"'
    )


def compared_lines(comparison: Comparison) -> list[str]:
    """Forecast and actual values side by side, without rows that have neither."""
    rows = [row for row in comparison.rows if (row.forecast, row.fact) != (None, None)]
    head = f"{'':14}{'forecast':>14}{'fact':>14}{'ratio':>8}"
    return [head, *(f"{row.name:14}{_n(row.forecast):>14}{_n(row.fact):>14}{_n(row.ratio):>8}" for row in rows)]


def _n(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
