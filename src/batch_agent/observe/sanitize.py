"""Text from elsewhere that cannot steer a screen: what models, tools and servers say.

Log records that are safe to print: their messages quote what servers, tools and callbacks say.
"""

import logging
import unicodedata

from ..core.safe_text import safe_text
from .text.formatting import one_line

_UNSEEN = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Marks that turn the writing direction, halves of characters, and what no font has."""


def sanitize(text: str, longest: int = 300) -> str:
    """The beginning of a text, on one line, with nothing in it but characters that are seen."""
    line = one_line(text, longest)
    if line.isprintable():
        return line
    return "".join("\ufffd" if unicodedata.category(each) in _UNSEEN else each for each in safe_text(line))


_FORMATTER = logging.Formatter()


def make_safe(log: logging.Logger) -> None:
    """What is logged there from now on has no control characters, neither in its message nor in its traceback."""
    log.addFilter(_safe)  # the same one twice is one


def _safe(record: logging.LogRecord) -> bool:
    record.msg, record.args = safe_text(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        record.exc_text = safe_text(_FORMATTER.formatException(record.exc_info))
    return True
