"""Token prices of models, from the user or from the table of genai-prices."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from ..core.errors import SpecError
from ..core.options.price import PRICE_FORMAT, GivenPrice, Price, parse_price

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "bedrock": "aws",
    "azure": "azure",
    "gemini": "google",
    "mistral": "mistral",
    "groq": "groq",
    "together": "together",
    "openrouter": "openrouter",
}
PRICED_BACKENDS = frozenset(_PROVIDERS)
"""Backends whose models have a price in the table."""
_TABLE = "genai-prices"
_WRITTEN, _WRITTEN_HOUR = 1.25, 2.0
"""What Anthropic and Bedrock charge for input that they write to their cache, for five minutes and for an hour, as
multiples of the input price."""
_WRITERS = ("anthropic", "bedrock")
_FREE_WRITES = "amazon.nova"
"""In the names of Bedrock's models whose cache writes cost no more than input."""
_PARTS = ("input_mtok", "cache_read_mtok", "output_mtok", "cache_write_mtok", "cache_write_1h_mtok")


def known_price(model: str, backend: str, given: Mapping[str, GivenPrice]) -> Price | None:
    """The price of a model. None if it is unknown, and for self-hosted servers, whose cost a model name does not
    tell."""
    if model not in given and backend not in _PROVIDERS:
        return None
    with suppress(SpecError):
        return price_of(model, backend, given)
    return None


def price_of(model: str, backend: str, given: Mapping[str, GivenPrice]) -> Price:
    """The price of a model, from `given` or from the table. Raises SpecError if the price is unknown."""
    factors = (_WRITTEN, _WRITTEN_HOUR) if backend in _WRITERS and _FREE_WRITES not in model else (1.0, 1.0)
    if model in given:
        try:
            return parse_price(given[model], *factors)
        except ValueError:
            raise SpecError(f"prices[{model!r}] must be {PRICE_FORMAT}.") from None
    try:
        from genai_prices import Usage, calc_price
    except ImportError as error:
        raise SpecError(
            f"max_usd needs the price of {model!r}: pass prices={{{model!r}: (input, cached, output)}} in dollars "
            "per million tokens, or pip install 'batch-agent[cost]'."
        ) from error
    try:
        found = calc_price(Usage(input_tokens=1000), model, provider_id=_PROVIDERS.get(backend)).model_price
    except LookupError as error:
        raise SpecError(
            f"The price of {model!r} is unknown: pass prices={{{model!r}: (input, cached, output)}} in dollars per "
            "million tokens, or set max_total_tokens instead of max_usd."
        ) from error
    return replace(parse_price(_listed(found), *factors), source=_table())


@cache
def _table() -> str:
    """The table and how old it is at most. It has no date of its own: that of its newest price is the best there is."""
    from genai_prices.data import providers
    from genai_prices.types import StartDateConstraint

    conditions = [
        price.constraint
        for provider in providers
        for model in provider.models
        for price in (model.prices if isinstance(model.prices, list) else ())
    ]
    starts = [each.start_date for each in conditions if isinstance(each, StartDateConstraint)]
    newest = max((start for start in starts if start <= datetime.now(UTC).date()), default=None)
    from importlib.metadata import version  # a tenth of all imports, for the name of a table that few runs use

    return f"{_TABLE} {version(_TABLE)}" + ("" if newest is None else f", with prices as of {newest}")


def _listed(price: "ModelPrice") -> dict[str, Any]:
    """A price of the table as users write it, with the prices of long prompts inside."""
    parts = {name: getattr(price, name, None) for name in _PARTS}
    starts = {tier.start for part in parts.values() for tier in getattr(part, "tiers", ())}
    listed: dict[str, Any] = {}
    for start in sorted(starts, reverse=True):
        listed = {"long": {"above": start, **_prices_at(parts, start), **listed}}
    return {**_prices_at(parts, 0), **listed}


def _prices_at(parts: Mapping[str, Any], start: int) -> dict[str, float]:
    """Prices of prompts with more tokens than `start`; without those that the table does not have."""
    names = ("input", "cached", "output", "written", "written_hour")
    found = {name: _price_at(part, start) for name, part in zip(names, parts.values(), strict=True) if part is not None}
    return {"input": 0.0, "output": 0.0, **found}


def _price_at(part: Any, start: int) -> float:
    tiers = [tier.price for tier in getattr(part, "tiers", ()) if tier.start <= start]
    return float(tiers[-1] if tiers else getattr(part, "base", part))
