"""Sanitizing of untrusted text (from models, tools and servers) for terminals, and of log records that quote it."""

import logging
import unicodedata

from ..core.safe_text import safe_text
from .text.text_format import one_line

_INVISIBLE = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of direction marks, lone surrogates, and private or unassigned characters."""


def sanitize(text: str, max_length: int = 300) -> str:
    """The beginning of a text, on one line, with printable characters only."""
    line = one_line(text, max_length)
    if line.isprintable():
        return line
    return "".join("\ufffd" if unicodedata.category(each) in _INVISIBLE else each for each in safe_text(line))


_FORMATTER = logging.Formatter()


def make_safe(log: logging.Logger) -> None:
    """Removes control characters from the messages and tracebacks of a logger from now on."""
    log.addFilter(_safe)  # adding it twice has no effect


def _safe(record: logging.LogRecord) -> bool:
    record.msg, record.args = safe_text(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        record.exc_text = safe_text(_FORMATTER.formatException(record.exc_info))
    return True
