"""Token prices of models, from the user or from the table of genai-prices."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..core.errors import SpecError
from ..schedule.budget import Price

_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "bedrock": "aws"}
_MILLION = 1_000_000


def known_price(model: str, backend: str, given: Mapping[str, Sequence[float]]) -> Price | None:
    """The price of a model. None if it is unknown, and for self-hosted servers, whose cost a model name does not
    tell."""
    if model not in given and backend not in _PROVIDERS:
        return None
    with suppress(SpecError):
        return price_of(model, backend, given)
    return None


def price_of(model: str, backend: str, given: Mapping[str, Sequence[float]]) -> Price:
    """The price of a model. `given` holds dollars per million tokens, as (input, cached input, output). Raises
    SpecError if the price is unknown."""
    if model in given:
        each = [float(part) / _MILLION for part in given[model]]
        if len(each) != 3:
            raise SpecError(f"prices[{model!r}] must be (input, cached input, output), in dollars per million tokens.")
        return Price(*each)
    try:
        from genai_prices import Usage, calc_price
    except ImportError as error:
        raise SpecError(
            f"max_usd needs the price of {model!r}: pass prices={{{model!r}: (input, cached, output)}} in dollars "
            "per million tokens, or pip install 'batch-agent[cost]'."
        ) from error
    try:
        parts = (Usage(input_tokens=1000), Usage(input_tokens=1000, cache_read_tokens=1000), Usage(output_tokens=1000))
        return Price(
            *(float(calc_price(part, model, provider_id=_PROVIDERS.get(backend)).total_price) / 1000 for part in parts)
        )
    except LookupError as error:
        raise SpecError(
            f"The price of {model!r} is unknown: pass prices={{{model!r}: (input, cached, output)}} in dollars per "
            "million tokens, or set max_total_tokens instead of max_usd."
        ) from error
