"""Log records that are safe to print: their messages quote what servers, tools and callbacks say."""

import logging

from ..core.safe_text import safe_text

_FORMATTER = logging.Formatter()


def make_safe(log: logging.Logger) -> None:
    """What is logged there from now on has no control characters, neither in its message nor in its traceback."""
    log.addFilter(_safe)  # the same one twice is one


def _safe(record: logging.LogRecord) -> bool:
    record.msg, record.args = safe_text(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        record.exc_text = safe_text(_FORMATTER.formatException(record.exc_info))
    return True
