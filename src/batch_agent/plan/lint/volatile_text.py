"""Lint rules for timestamps and random IDs in text that should be the same in every run.

False positives cost the user's trust, so text that may be an example, code or data is skipped.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice, pairwise

from ...core.run_reports import Finding

MAX_CHECKED_CHARS = 20_000
"""Maximum number of characters of a text that are checked."""
_MAX_QUOTED_CHARS = 40

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_WEEKDAY = r"(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_CLOCK = r"[0-2]?\d:[0-5]\d(?::[0-5]\d)?(?:[.,]\d{1,9})?(?: ?(?:[AaPp]\.?[Mm]\b|Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b))?"
_DAY = r"[0-3]?\d(?:st|nd|rd|th)?\b"
_DATE = (
    r"(?:20\d\d[-/.][01]?\d[-/.][0-3]?\d|[0-3]?\d[./-][0-3]?\d[./-]20\d\d"
    rf"|{_MONTH} {_DAY},? 20\d\d|{_DAY}\.? (?:of )?{_MONTH},? 20\d\d)"
)
_EPOCH = r"(?P<epoch>\d{9,10}(?:\.\d{1,9})?|\d{12,13})(?![\w.])"
_STAMP = (
    rf"(?<![\w./-])(?:{_DATE}(?:T|,? (?:at )?){_CLOCK}|{_CLOCK},? (?:on )?{_DATE}"
    rf"|{_MONTH} {{1,2}}{_DAY} {_CLOCK} (?:[A-Z]{{3,4}} )?20\d\d|20\d\d[01]\d[0-3]\dT[0-2]\d[0-5]\d[0-5]\dZ?\b)"
)
DATE_OR_TIME = rf"(?:{_WEEKDAY},? )?(?:{_DATE}|{_STAMP})"
_NOW = (
    r"(?<![A-Za-z])(?i:today(?:['’]s (?:date|day))?|now|(?:current|today['’]s)[ _-]?"
    r"(?:date(?:[ _/-]?(?:and )?time)?|time(?:stamp)?|day))\b"
    r"(?:(?i: is now| is)|\*{0,2} {0,2}[:=])\*{0,2} {0,2}(?i:the )?[\"'(`]?"
    rf"(?:{_DATE}|{_WEEKDAY}|{_CLOCK}|{_MONTH} {_DAY}|{_DAY} (?:of )?{_MONTH})"
    rf"|\b(?i:it is now) (?:{_CLOCK}|{_DATE})"
)
_NAMED_EPOCH = (
    r"(?<![A-Za-z])(?i:unix|epoch|time(?:stamp)?|ts|now|generated|created)"
    rf"(?i:[ _-](?:time|timestamp|epoch|at|ms|millis|seconds))? {{0,2}}[:=]? {{0,2}}{_EPOCH}"
)
_NOT_A_TIMESTAMP = r"(?<![\d:+-])(?:0?0:00(?::00(?!\d))?(?!:)|23:59|12:00 ?[Aa][Mm])"
"""Limits such as midnight, which people write down. A prompt is seldom made at these times."""

HEX_ID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_UUID = rf"(?<![\w/:{{-]){HEX_ID}(?![\w-])"
_WELL_KNOWN = ("123e4567-e89b-", "550e8400-e29b-", "f81d4fae-7dec-", "6ba7b81", "12345678-1234-")
"""Prefixes of the UUIDs in specifications and tutorials."""
_NAMED_ID = (
    r"(?<![A-Za-z0-9:/])(?i:session|request|req|trace|correlation|conversation|invocation|transaction|span|run|job|nonce)"
    r"(?i:[ _-]?(?:id|identifier|key|token|uuid|hash))? {0,2}(?:is |[:=#]) {0,2}[\"'`<(]?"
    r"(?P<id>[A-Za-z0-9_+/=.-]{8,200})"
)
_PREFIXED_ID = r"(?<![\w/-])(?:sess|session|req|request|conv|run|trace)[_-](?P<id>[A-Za-z0-9]{12,200})\b"

_EXAMPLE = r"(?i)\b(?:examples?|samples?|few-shot)\b"
_SUCH_AS = (
    r"(?i)(?:\b(?:e\.g\.|i\.e\.|(?:for instance|such as|like|format(?:s|ted)?|examples?|ISO[ -]?8601|RFC ?\d{4})\b)"
    r"[^.!?\n]{0,40}|\b(?:if|when|whether|unless) (?:the )?)$"
)

_MAY_MATCH = re.compile(r"[\d-]|(?i:today|now|current)")
"""Fast check: text without any of these has no findings."""
_ADVICE = "Remove it, or move it to the end of the task."


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern that is compiled on first use, because compilation takes milliseconds and most prompts do not need
    it."""
    return re.compile(pattern)


def lint_text(where: str, text: str) -> Iterator[Finding]:
    for kind, what, patterns in TEXT_KINDS:
        if found := first_match(text, patterns):
            yield text_finding(kind, where, what, found)


def text_finding(kind: str, where: str, what: str, found: str) -> Finding:
    message = f"{where} contains {what}, {quote(found)}: when it changes, nothing after it can be shared."
    return Finding(kind, message, _ADVICE)


def first_match(text: str, patterns: "Iterable[_Pattern]") -> str | None:
    """First match of the patterns that is outside of code blocks and not an example."""
    prose = "\n".join(text[:MAX_CHECKED_CHARS].split("```")[::2])
    if not _MAY_MATCH.search(prose):
        return None
    matches = (next(filter(is_meant, compile_pattern(pattern).finditer(prose)), None) for pattern, is_meant in patterns)
    first = min(filter(None, matches), key=lambda match: match.start(), default=None)
    return first and first[0]


def _is_literal(match: re.Match[str]) -> bool:
    """Whether the match is neither quoted nor after a phrase such as "for example" in the same sentence."""
    before = match.string[max(0, match.start() - 60) : match.start()]
    return before[-1:] not in {'"', "'", "`", "“", "‘"} and not compile_pattern(_SUCH_AS).search(before)


def _stands_alone(match: re.Match[str]) -> bool:
    """Whether the match is meant literally, and not in a paragraph of examples."""
    paragraph = match.string[max(0, match.start() - 400) : match.start()].rpartition("\n\n")[2]
    return _is_literal(match) and not compile_pattern(_EXAMPLE).search(paragraph)


def _is_stamp(match: re.Match[str]) -> bool:
    return _stands_alone(match) and not compile_pattern(_NOT_A_TIMESTAMP).search(match[0])


def _is_named_epoch(match: re.Match[str]) -> bool:
    return _stands_alone(match) and is_epoch(match["epoch"])


def is_epoch(digits: str) -> bool:
    """Whether the digits are a time from 2000 to 2100. Round numbers are taken for examples."""
    whole = digits.partition(".")[0]
    seconds = int(whole) / (1000 if len(whole) > 10 else 1)
    return 946_684_800 <= seconds < 4_102_444_800 and not whole.endswith("00000")


def _is_uuid(match: re.Match[str]) -> bool:
    text = match[0].lower()
    return _stands_alone(match) and not text.startswith(_WELL_KNOWN) and len(set(text)) > 6


def _is_session_id(match: re.Match[str]) -> bool:
    return _stands_alone(match) and is_random(match["id"].rstrip("."))


def is_random(token: str) -> bool:
    """Whether letters and digits alternate as in hashes and keys, unlike in names and versions."""
    if re.fullmatch(HEX_ID, token):
        return not token.lower().startswith(_WELL_KNOWN)
    plain = re.sub(r"[-_+/=.]", "", token[:200])
    if not plain.isascii() or not plain.isalnum():
        return False
    if plain.isdigit():
        return len(plain) >= 10
    turns = sum(one.isdigit() != other.isdigit() for one, other in pairwise(plain))
    changes = sum(_class(one) != _class(other) for one, other in pairwise(plain))
    return len(plain) >= 8 and turns >= 3 and changes >= len(plain) / 4


def _class(letter: str) -> int:
    return 0 if letter.isdigit() else 1 if letter.isupper() else 2


def quote(text: str) -> str:
    short = " ".join(islice(text[: 4 * _MAX_QUOTED_CHARS].split(), _MAX_QUOTED_CHARS))
    return repr(short if len(short) <= _MAX_QUOTED_CHARS else short[: _MAX_QUOTED_CHARS - 3] + "...")


_Pattern = tuple[str, Callable[[re.Match[str]], bool]]
TEXT_KINDS: tuple[tuple[str, str, tuple[_Pattern, ...]], ...] = (
    ("timestamp", "a timestamp", ((_STAMP, _is_stamp), (_NOW, _is_literal), (_NAMED_EPOCH, _is_named_epoch))),
    ("uuid", "a random ID", ((_UUID, _is_uuid), (_NAMED_ID, _is_session_id), (_PREFIXED_ID, _is_session_id))),
)
