"""Facts, jobs and endings as bytes. The bytes are a promise: what was written by one version is read by the next."""

from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from ..core.agent_config import Job
from ..core.coordinator import Completion
from ..core.errors import ErrorKind
from ..core.facts import CarriedOver, Claimed, Compacted, Fact, Replied, Returned, Settled, Started, Withdrawn
from ..core.json import dumps
from ..core.results import AgentError
from ..plan.jsonable import to_jsonable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_NAMES: dict[type, str] = {
    kind: kind.__name__.lower()
    for kind in (Started, Replied, Returned, Claimed, Withdrawn, Settled, CarriedOver, Compacted)
}
_KINDS: dict[str, type[Fact]] = {name: kind for kind, name in _NAMES.items()}


def encode(fact: Fact) -> tuple[str, bytes]:
    """The kind of a fact, and its fields as JSON."""
    kind = _NAMES[type(fact)]
    try:
        return kind, orjson.dumps(fact, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return kind, _with_oddities(fact)


def decode(kind: str, data: bytes) -> Fact:
    """Raises ValueError for what no fact looks like."""
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of fact: {kind!r}")
    return _reader(kind).validate_json(data)


@cache
def _reader(kind: str) -> "TypeAdapter[Fact]":
    from pydantic import TypeAdapter  # whoever only writes does without

    return TypeAdapter(_KINDS[kind])


def encode_job(job: Job) -> bytes:
    """A job without a problem, to be done by another process."""
    return _dump([job.index, job.key, job.input, job.task, job.shared, job.parts])


def decode_job(data: bytes) -> Job:
    index, key, value, task, shared, parts = orjson.loads(data)
    return Job(index, key, value, task, shared=shared, parts=tuple(parts))


def encode_ending(ending: Completion) -> bytes:
    error = ending.error
    told = None if error is None else [error.kind, error.message, error.retryable]
    return _dump([ending.key, told, ending.seconds, ending.worker])


def decode_ending(data: bytes) -> Completion:
    key, told, seconds, worker = orjson.loads(data)
    error = None if told is None else AgentError(ErrorKind(told[0]), told[1], told[2])
    return Completion(key, error, seconds, worker)


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=to_jsonable, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return _with_oddities(value)


def _with_oddities(value: Any) -> bytes:
    """Half a character, as names of files may have, or a number of many digits."""
    return dumps(to_jsonable(value))
