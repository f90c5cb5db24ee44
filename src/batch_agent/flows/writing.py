"""Values as a model reads them."""

from typing import Any

from ..core.json import dumps_any, replace_surrogates
from ..plan.plain import plain


def written(value: Any) -> str:
    """Its JSON. Raises ValueError for what has no end, and whatever an object raises that no text can be made of."""
    try:
        made = plain(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return replace_surrogates(dumps_any(made, plain))
