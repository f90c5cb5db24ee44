"""Binary record of the tokens of one request, as stored in a checkpoint.

A line of JSON with the lengths, followed by the ids and log probabilities as arrays, compressed if they are long. A
prompt that continues the previous request is stored without the common part, so a record grows with its turn and not
with the conversation."""

import zlib
from dataclasses import replace
from functools import lru_cache

import orjson

from ..core.fast_dataclass import dataclass
from ..core.requests import ID_BYTES, TurnTokens

_LEVEL = 1
"""Compression level of zlib. Higher levels take several times longer and save little."""
_MIN_COMPRESSED = 4096
"""Bytes below which a record is not compressed, which would cost a tenth of the CPU time of a turn."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The tokens of one request of an agent."""

    tokens: TurnTokens
    """Has the complete prompt, except in a record that was read but not yet completed."""
    turn: int
    """Number of the request among the agent's requests."""
    attempt: str = ""
    """The attempt of a program to which the request belongs; empty for an agent without a program."""
    thread: str = ""
    """The conversation to which the request belongs. Besides that of its task, a program may have others, for example
    for a title or for an agent of its own. Empty for an agent without a program."""
    continues: int = 0
    """Number of bytes that the prompt shares with the previous record of the same conversation."""
    sent_as_ids: bool = False
    """Whether the prompt was sent as ids. Otherwise the server rendered it from messages."""

    def completed(self, previous: bytes) -> "TokenRecord":
        """The record with its complete prompt. `previous`: the sequence of the previous record. Raises ValueError if it
        is missing."""
        if not self.continues:
            return self
        if len(previous) < self.continues:
            raise ValueError("the record before it is missing")
        prompt = previous[: self.continues] + self.tokens.prompt
        return replace(self, tokens=replace(self.tokens, prompt=prompt), continues=0)


def encode_record(record: TokenRecord, previous: bytes = b"") -> bytes:
    """Encodes a record. `previous`: the sequence of the previous record in the same conversation, if any."""
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
    """Fields that many records have in common, as JSON."""
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
    """Decodes a record. Raises ValueError for other data."""
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
