"""Untrusted text made safe to print to a terminal, and secrets masked in it."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus

_REPLACEMENT = 0xFFFD
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_OTHERS = (*range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xFFF9, 0xFFFC), *range(0xD800, 0xE000))
_TABLE = {
    **dict.fromkeys((*_BIDI, *_OTHERS), _REPLACEMENT),
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
}


def safe_text(text: str) -> str:
    """The text without terminal controls: control characters (C0 become visible symbols such as ␛, C1 and DEL a
    replacement character), marks that change the text direction, and surrogates. Line ends and tabs stay. Each
    character becomes one character."""
    return text if text.isprintable() else text.translate(_TABLE)


_MASK = "***"
_MIN_SECRET = 3
"""Shorter ones, such as `x`, stand where a key has to be set that no server checks. They occur in any text."""
_USER_INFO = re.compile(r"//[^/\s]*@")
_MIN_MATCH = 8
"""Characters of a secret, or of its Base64, that are unlikely to match by chance."""


def masked(text: str, secrets: Iterable[str]) -> str:
    """The text with a mask for each secret, also where it is escaped for a URL, JSON or HTML, is in Base64, or is cut
    off by the end of the text."""
    known = tuple(sorted({secret for secret in secrets if len(secret) >= _MIN_SECRET}))
    if not known:
        return text
    return _without_cut_end(_pattern(known).sub(_MASK, text), known)


def public_url(url: str) -> str:
    """The URL without user, password and query, any of which may be secret. Only the scheme is left where an `@` behind
    the first `?` may belong to a password or to a query."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest.partition("?")[2]:
        return f"{scheme}{mark}..."
    return f"{scheme}{mark}{rest.rpartition('@')[2].partition('?')[0]}"


def mask_user_info(text: str) -> str:
    """The text with a mask for the user and the password of each URL in it."""
    return _USER_INFO.sub(f"//{_MASK}@", text)


def masked_bytes(data: bytes, secrets: Iterable[str]) -> bytes:
    """`masked` for bytes that are not decoded yet."""
    return masked(data.decode("latin-1"), secrets).encode("latin-1")


@lru_cache(maxsize=32)
def _pattern(secrets: tuple[str, ...]) -> re.Pattern[str]:
    spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True))))


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    for escaped in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield escaped
        yield re.sub("%..", lambda found: found[0].lower(), escaped)
    in_json = json.dumps(secret)[1:-1]
    for escaped in (in_json, in_json.replace("/", "\\/")):
        yield escaped
        yield json.dumps(escaped)[1:-1]  # JSON inside a JSON string
    import html  # its table of entities, for secrets in errors only

    yield html.escape(secret)
    yield html.escape(secret, quote=False)
    yield from _in_base64(secret.encode())


def _in_base64(secret: bytes) -> Iterator[str]:
    """The parts of the Base64 of the secret that do not depend on its neighbours, for each of the three alignments. The
    ends, which encode adjacent bytes too, are left out."""
    for before in range(3):
        encoded = b64encode(bytes(before) + secret).decode()
        whole = (before + len(secret)) // 3 * 4
        part = encoded[(0, 2, 3)[before] : whole]
        if len(part) >= _MIN_MATCH:
            yield part
            yield part.translate({ord("+"): "-", ord("/"): "_"})


def _without_cut_end(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        for size in range(len(secret) - 1, _MIN_MATCH - 1, -1):
            if text.endswith(secret[:size]):
                return text[:-size] + _MASK
    return text
