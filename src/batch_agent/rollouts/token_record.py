"""Binary record of the tokens of one request, as a checkpoint stores it.

A line of JSON with the lengths, then the ids and log probabilities as arrays, compressed if they are long. A prompt
that continues the request before it is stored without what both have, so that a record grows with its turn and not with
the conversation."""

import zlib
from dataclasses import replace
from functools import lru_cache

import orjson

from ..core.fast_dataclass import dataclass
from ..core.requests import ID_BYTES, TurnTokens

_LEVEL = 1
"""Of zlib: higher levels take several times longer and save little."""
_MIN_COMPRESSED = 4096
"""Bytes below which a record is not compressed: that would cost a tenth of the CPU time of a turn."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The tokens of one request of an agent."""

    tokens: TurnTokens
    """With the whole prompt, except in a record that was read and not completed yet."""
    turn: int
    """Number of the request among those of its agent."""
    attempt: str = ""
    """The attempt of a program to which the request belongs; empty for an agent without a program."""
    thread: str = ""
    """The conversation to which the request belongs: a program has others beside that of its task, such as for a
    title or of an agent of its own. Empty for an agent without a program."""
    continues: int = 0
    """Bytes of the prompt that are those of the record before it, of the same conversation."""
    sent_as_ids: bool = False
    """The prompt was sent as ids. Otherwise the server rendered it from messages."""

    def completed(self, previous: bytes) -> "TokenRecord":
        """With its whole prompt. `previous`: the sequence of the record before it. Raises ValueError if that is
        missing."""
        if not self.continues:
            return self
        if len(previous) < self.continues:
            raise ValueError("the record before it is missing")
        prompt = previous[: self.continues] + self.tokens.prompt
        return replace(self, tokens=replace(self.tokens, prompt=prompt), continues=0)


def encode_record(record: TokenRecord, previous: bytes = b"") -> bytes:
    """`previous`: the sequence of the record before it, if there is one in the same conversation."""
    tokens = record.tokens
    kept = len(previous) if previous and tokens.prompt.startswith(previous) else 0
    body, zipped = b"".join((tokens.prompt[kept:], tokens.sampled, tokens.logprobs)), b""
    if len(body) >= _MIN_COMPRESSED:
        body, zipped = zlib.compress(body, _LEVEL), b',"zlib":true'
    lengths = kept // ID_BYTES, (len(tokens.prompt) - kept) // ID_BYTES, len(tokens.sampled) // ID_BYTES
    names = _names(record.attempt, record.thread, record.sent_as_ids, tokens.finish, tokens.model, tokens.version)
    head = b'{"turn":%d,"continues":%d,"prompt":%d,"sampled":%d,' % (record.turn, *lengths)
    return b"".join((head, names, zipped, b"}\n", body))


@lru_cache(256)
def _names(attempt: str, thread: str, as_ids: bool, finish: str, model: str, version: str) -> bytes:
    """What many records have in common, as fields of JSON."""
    fields = {
        "attempt": attempt,
        "thread": thread,
        "as_ids": as_ids,
        "finish": finish,
        "model": model,
        "version": version,
    }
    return orjson.dumps(fields)[1:-1]


def decode_record(data: bytes) -> TokenRecord:
    """Raises ValueError for data that is no record."""
    head_line, _, body = data.partition(b"\n")
    try:
        head = orjson.loads(head_line)
        body = zlib.decompress(body) if "zlib" in head else body
        end_of_prompt = head["prompt"] * ID_BYTES
        end_of_ids = end_of_prompt + head["sampled"] * ID_BYTES
        tokens = TurnTokens(
            body[:end_of_prompt],
            body[end_of_prompt:end_of_ids],
            body[end_of_ids:],
            head["finish"],
            head["model"],
            head["version"],
        )
        if len(tokens.logprobs) != len(tokens.sampled):
            raise ValueError("its lengths do not fit together")
        return TokenRecord(
            tokens, head["turn"], head["attempt"], head["thread"], head["continues"] * ID_BYTES, head["as_ids"]
        )
    except (KeyError, TypeError, zlib.error) as error:
        raise ValueError(f"not a record of tokens: {error}") from error
