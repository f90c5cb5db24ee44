"""Broken JSON, mended by a library. It is asked only about what begins like JSON, and only about so much of it: prose
full of braces takes it quadratic time, on the event loop, and would come back as an answer that nobody gave."""

import re
from typing import Any

_BEGINS_LIKE_JSON = re.compile(
    r"""\{\s*(?:"[^"\n]{0,200}"|'[^'\n]{0,200}'|[^\W\d][\w-]{0,100})\s*:"""  # an object, with a first key
    r"""|\[\s*(?:[\[{"']|-?\d)"""  # a list, with a first value
)
_BRACKET = re.compile(r"[\[{]")
_MOST_BRACKETS = 400
_MOST_CHARACTERS = 10_000


def repaired_values(text: str) -> list[Any]:
    """The objects and lists that `text` was meant to hold, in order."""
    opening = _BEGINS_LIKE_JSON.search(text)
    if opening is None:
        return []
    broken = text[opening.start() :]
    if len(broken) > _MOST_CHARACTERS or len(_BRACKET.findall(broken)) > _MOST_BRACKETS:
        return []
    import json_repair  # few models write broken JSON

    try:
        value = json_repair.loads(broken)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, list):  # a list, or several values that come back as one
        return [*(item for item in value if isinstance(item, dict | list)), value]
    return [value] if isinstance(value, dict) else []
