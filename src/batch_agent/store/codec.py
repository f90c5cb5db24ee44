"""Encoding of facts, jobs and completions. The format is stable: later versions read what earlier versions wrote."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

import orjson

from ..core.agent_config import Job
from ..core.coordinator import Completion
from ..core.errors import ErrorKind
from ..core.facts import (
    CarriedOver,
    Claimed,
    Compacted,
    Fact,
    Failed,
    Replied,
    Returned,
    Sampled,
    Settled,
    Started,
    Withdrawn,
)
from ..core.images import ImageRef, PlacedImage
from ..core.json import dumps
from ..core.messages import ToolCall
from ..core.results import AgentError
from ..plan.jsonable import to_jsonable

_NAMES: dict[type, str] = {
    kind: kind.__name__.lower()
    for kind in (Started, Replied, Sampled, Returned, Claimed, Withdrawn, Settled, CarriedOver, Compacted, Failed)
}
_KINDS: dict[str, type[Fact]] = {name: kind for kind, name in _NAMES.items()}


def encode(fact: Fact) -> tuple[str, bytes]:
    """The kind of a fact, and its fields as JSON. Token ids stay binary."""
    kind = _NAMES[type(fact)]
    if kind == "sampled":
        assert isinstance(fact, Sampled)
        return kind, fact.record
    fields = _FIELDS.get(kind)
    return kind, _dump(fact if fields is None else fields(fact))


def _reply_fields(fact: Replied) -> dict[str, Any]:
    """Fields of a fact that every turn has, as a dict: orjson takes three times as long for objects. Leaves out fields
    that are mostly empty."""
    reply, usage = fact.reply, fact.reply.usage
    tokens: dict[str, Any] = {"input": usage.input, "cached": usage.cached, "output": usage.output}
    if usage.written:
        tokens["written"] = usage.written
    if usage.written_hour:
        tokens["written_hour"] = usage.written_hour
    if usage.parts:
        tokens["parts"] = usage.parts
    said: dict[str, Any] = {"text": reply.text, "finish": reply.finish, "usage": tokens}
    if reply.calls:
        said["calls"] = [_call_fields(call) for call in reply.calls]
    if reply.thoughts:
        said["thoughts"] = reply.thoughts
    if reply.tokens is not None:
        said["tokens"] = reply.tokens
    fields = {"reply": said, "queued": fact.queued, "seconds": fact.seconds, "attempts": fact.attempts}
    if fact.ttft is not None:
        fields["ttft"] = fact.ttft
    if fact.work is not None:
        fields["work"] = fact.work
    if fact.cut_at is not None:
        fields["cut_at"] = fact.cut_at
    return fields


def _result_fields(fact: Returned) -> dict[str, Any]:
    """Like `_reply_fields`, for the results of a turn's calls."""
    results = []
    for result in fact.results:
        fields = {
            "call": _call_fields(result.call),
            "content": result.content,
            "is_error": result.is_error,
            "seconds": result.seconds,
            "source": result.source,
        }
        if result.reference is not None:
            fields["reference"] = result.reference
        if result.images:
            fields["images"] = result.images
        results.append(fields)
    return {"results": results, "seconds": fact.seconds}


def _call_fields(call: ToolCall) -> dict[str, str]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _start_fields(fact: Started) -> dict[str, Any]:
    """Like `_reply_fields`, for the task that every agent has."""
    fields = {"index": fact.index, "input": fact.input, "task": fact.task}
    if fact.references_at:
        fields["references_at"] = fact.references_at
    if fact.images:
        fields["images"] = fact.images
    return fields


_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "started": _start_fields,
    "replied": _reply_fields,
    "returned": _result_fields,
}


def decode(kind: str, data: bytes) -> Fact:
    """Raises ValueError for an unknown kind and for data that does not match it."""
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of fact: {kind!r}")
    if kind == "sampled":
        return Sampled(bytes(data))
    return _reader(kind)(data)


@cache
def _reader(kind: str) -> Callable[[bytes], Fact]:
    from pydantic import TypeAdapter  # a run that only writes does not need it

    return TypeAdapter[Fact](_KINDS[kind]).validator.validate_json


MAX_INPUT_BYTES = 64 * 1024 * 1024
"""Maximum bytes of the inputs that are kept for readers before their agents start. Of a larger list, the remaining
inputs are kept only as positions: the facts of an agent contain its input."""


class EncodedInput(bytes):
    """An input encoded by another process. Empty if it has no JSON form or there was no room for it."""


def encode_inputs(values: Iterable[Any]) -> list[EncodedInput]:
    """Encodes inputs for another process, which keeps them for readers."""
    room, encoded = MAX_INPUT_BYTES, list[EncodedInput]()
    for value in values:
        data = EncodedInput((encode_input(value) or b"") if room > 0 else b"")
        room -= len(data)
        encoded.append(data)
    return encoded


def encode_input(value: Any) -> bytes | None:
    """An input as JSON, for readers; None if it has no JSON form, for example because it contains itself."""
    if isinstance(value, EncodedInput):
        return bytes(value) or None
    try:
        return _dump(value)
    except Exception:  # noqa: BLE001 - the methods of the user's objects may raise anything
        return None


def encode_error(error: AgentError) -> bytes:
    return _dump(_error_fields(error))


def decode_error(data: bytes) -> AgentError:
    return _error(orjson.loads(data))


def encode_job(job: Job) -> bytes:
    """Encodes a valid job for another process."""
    images = [asdict(placed) for placed in job.images]
    return _dump([job.index, job.key, job.input, job.task, job.shared, job.parts, job.references_at, images])


def decode_job(data: bytes) -> Job:
    index, key, value, task, shared, parts, at, images = orjson.loads(data)
    placed = tuple(PlacedImage(each["at"], ImageRef(**each["image"])) for each in images)
    return Job(index, key, value, task, shared=shared, references_at=at, parts=tuple(parts), images=placed)


def encode_completion(completion: Completion) -> bytes:
    fields = None if completion.error is None else _error_fields(completion.error)
    return _dump([completion.key, fields, completion.seconds, completion.worker])


def decode_completion(data: bytes) -> Completion:
    key, fields, seconds, worker = orjson.loads(data)
    return Completion(key, None if fields is None else _error(fields), seconds, worker)


def _error_fields(error: AgentError) -> list[Any]:
    return [error.kind, error.message, error.retryable]


def _error(fields: list[Any]) -> AgentError:
    kind, message, retryable = fields
    return AgentError(ErrorKind(kind), message, retryable)


def _dump(value: Any) -> bytes:
    """Copies the result of orjson, which otherwise stays as large as orjson's buffer: a page of memory for each fact
    that waits to be written."""
    try:
        return b"%b" % orjson.dumps(value, default=to_jsonable)
    except TypeError:
        return _dump_unusual(value)


def _dump_unusual(value: Any) -> bytes:
    """Encodes values that orjson rejects: keys that are not text (to allow them takes half as long again for every
    value), lone surrogates, as in file names, and very large integers."""
    try:
        return orjson.dumps(value, default=to_jsonable, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return dumps(to_jsonable(value))
