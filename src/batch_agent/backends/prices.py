"""What models cost, from a dated table or as the user says."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..core.errors import SpecError
from ..schedule.budget import Price

_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "bedrock": "aws"}
_MILLION = 1_000_000


def known_price(model: str, backend: str, given: Mapping[str, Sequence[float]]) -> Price | None:
    """None where nobody knows it, and for a server of one's own: a name says nothing of what that costs."""
    if model not in given and backend not in _PROVIDERS:
        return None
    with suppress(SpecError):
        return price_of(model, backend, given)
    return None


def price_of(model: str, backend: str, given: Mapping[str, Sequence[float]]) -> Price:
    """`given` holds dollars for a million tokens, as (input, cached input, output). Raises SpecError for a model whose
    price is unknown."""
    if model in given:
        each = [float(part) / _MILLION for part in given[model]]
        if len(each) != 3:
            raise SpecError(
                f"prices[{model!r}] must be (input, cached input, output), in dollars for a million tokens."
            )
        return Price(*each)
    try:
        from genai_prices import Usage, calc_price
    except ImportError as error:
        raise SpecError(
            f"max_usd needs the price of {model!r}: give prices={{{model!r}: (input, cached, output)}} in dollars "
            "for a million tokens, or pip install 'batch-agent[cost]'."
        ) from error
    try:
        parts = (Usage(input_tokens=1000), Usage(input_tokens=1000, cache_read_tokens=1000), Usage(output_tokens=1000))
        return Price(
            *(float(calc_price(part, model, provider_id=_PROVIDERS.get(backend)).total_price) / 1000 for part in parts)
        )
    except LookupError as error:
        raise SpecError(
            f"No price is known for {model!r}: give prices={{{model!r}: (input, cached, output)}} in dollars for a "
            "million tokens, or set max_total_tokens instead of max_usd."
        ) from error
