"""Text of models, tools, servers and inputs, made safe to print to a terminal."""

_REPLACEMENT = 0xFFFD
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_OTHERS = (*range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xFFF9, 0xFFFC), *range(0xD800, 0xE000))
_TABLE = {
    **dict.fromkeys((*_BIDI, *_OTHERS), _REPLACEMENT),
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
}


def safe_text(text: str) -> str:
    """The text without what a terminal obeys: control characters (C0 become visible symbols such as ␛, C1 and DEL a
    replacement character), marks that turn the writing direction, and surrogates. Line ends and tabs stay. Each
    character becomes one character."""
    return text if text.isprintable() else text.translate(_TABLE)
