"""Text from elsewhere that cannot steer a screen: what models, tools and servers say."""

import unicodedata

from ..core.safe_text import safe_text
from .story import one_line

_UNSEEN = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Marks that turn the writing direction, halves of characters, and what no font has."""


def calm(text: str, longest: int = 300) -> str:
    """The beginning of a text, on one line, with nothing in it but characters that are seen."""
    line = one_line(text, longest)
    if line.isprintable():
        return line
    return "".join("\ufffd" if unicodedata.category(each) in _UNSEEN else each for each in safe_text(line))
