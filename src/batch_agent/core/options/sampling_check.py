"""Check of sampling options."""

from ..errors import SpecError
from ..requests import Sampling
from ..validation import at_least, is_number, is_whole, valid_unicode

_MAX_SEED = 2**63 - 1


def check_sampling(sampling: Sampling) -> None:
    """Raises SpecError."""
    if sampling.max_tokens is not None:
        at_least("max_tokens", sampling.max_tokens, 1)
    if sampling.temperature is not None and not (is_number(sampling.temperature) and sampling.temperature >= 0):
        raise SpecError(f"temperature must be a number >= 0; got {sampling.temperature!r}.")
    if sampling.top_p is not None and not (is_number(sampling.top_p) and 0 < sampling.top_p <= 1):
        raise SpecError(f"top_p must be a number > 0 and <= 1; got {sampling.top_p!r}.")
    if sampling.seed is not None and (not is_whole(sampling.seed) or abs(sampling.seed) > _MAX_SEED):
        raise SpecError(f"seed must be an integer of at most 64 bits; got {sampling.seed!r}.")
    if not isinstance(sampling.stop, list | tuple) or not all(isinstance(text, str) for text in sampling.stop):
        raise SpecError(f"stop must be a list of strings; got {sampling.stop!r}: write stop=[...].")
    for text in sampling.stop:
        valid_unicode("stop", text)
