"""Keys of agents for inputs with an identifying field, such as `id`: `key="id"`.

The key of an agent in a checkpoint is `ID@DIGEST`, with a digest of the question and of what the prompt shows of the
input. A row that is moved, or changed elsewhere, is the same agent; a row whose prompt changes is another one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote

from ..core.agent_config import Job, key_of_sample, sample_of, without_sample
from ..core.errors import SpecError
from ..core.schema import is_model
from ..core.validation import suggestion
from .field_paths import FieldMissing, find
from .fingerprint import canonical
from .hash_set import DigestSet
from .template import BadInput

_MAX_CHARS = 200
_MAX_SHOWN = 5
_QUESTION_BYTES, _ROW_BYTES = 4, 8


class RowKeys:
    """Generator of keys. Raises ValueError for an input without the field, or with a value that occurred before."""

    def __init__(self, run: bytes, field: str, cells: Callable[[Any], Sequence[str]]) -> None:
        """`cells`: returns what the task shows of an input; may raise BadInput."""
        self._question = run[:_QUESTION_BYTES].hex()
        self._run = blake2b(digest_size=_ROW_BYTES, key=run)
        self._field = field
        self._cells = cells
        self._seen = DigestSet()

    def key(self, value: Any, sample: int = 0, images: Sequence[str] = ()) -> str:
        row = row_id(value, self._field)
        if not sample and not self._seen.add(row):
            raise ValueError(f"key={self._field!r}: {row!r} occurs more than once")
        try:
            shown: Any = list(self._cells(value))
        except BadInput:
            shown = value
        digest = self._run.copy()
        digest.update(canonical([row, shown, *images]))
        key = f"{key_of_row(row)}{self._question}{digest.hexdigest()}"
        return key_of_sample(key, sample)


def key_of_row(row: str) -> str:
    """Common beginning of all keys of a row: `ID@`."""
    return f"{quote(row, safe='').replace('.', '%2E')}@"


def agent_names(job: Job) -> tuple[str, ...]:
    """Names by which a user may refer to the agent: its key, the key of its row, or its index."""
    row, sample = row_key(without_sample(job.key)), sample_of(job.key)
    return job.key, key_of_sample(row, sample), key_of_sample(str(job.index), sample)


def row_key(key: str) -> str:
    """The key as results show it: the value of the field, or the key itself for a run without one. The key of a chunk
    keeps the name of the chunk."""
    row, mark, digest = key.rpartition("@")
    _, dot, chunk = digest.partition(".")
    return f"{unquote(row)}{dot}{chunk}" if mark else key


def is_row_key(key: str) -> bool:
    """Whether an agent's key is the value of a field, so that people recognize it."""
    return "@" in key


def is_of_question(key: str, run: bytes) -> bool:
    """Whether an agent with this key belongs to the question with this fingerprint."""
    return key.rpartition("@")[2].startswith(run[:_QUESTION_BYTES].hex())


def check_row_keys(inputs: Iterable[Any], field: str) -> None:
    """Raises SpecError if an input lacks the field, or if two have the same value."""
    seen: dict[str, int] = {}
    repeated: dict[str, list[int]] = {}
    for index, value in enumerate(inputs):
        try:
            row = row_id(value, field)
        except ValueError as error:
            raise SpecError(f"{error} (input {index}).") from None
        if row in seen:
            repeated.setdefault(row, [seen[row]]).append(index)
        else:
            seen[row] = index
    if repeated:
        raise SpecError(
            f"key={field!r} must be unique, but {_counted(repeated)} more than once: {_listed(repeated)}. Remove the "
            "duplicates, or choose another field."
        )


def row_id(value: Any, field: str) -> str:
    """The value of the field, as text. Raises ValueError."""
    fields: Any = dict(value) if is_model(value) else value
    if not isinstance(fields, Mapping):
        raise ValueError(f"key={field!r} needs inputs with fields, but one is a {type(value).__name__}")
    try:
        found = find(fields, field)
    except FieldMissing:
        hint = suggestion(field, map(str, fields)).rstrip("?")
        have = ", ".join(map(str, fields))
        raise ValueError(
            f"key={field!r}: an input has no such field; it has {have}{'.' if hint else ''}{hint}{'?' if hint else ''}"
        ) from None
    if found is None or found == "" or isinstance(found, bool | list | tuple | set | Mapping):
        raise ValueError(f"key={field!r} must be a text or a number; got {found!r}")
    text = str(found)
    if len(text) > _MAX_CHARS:
        raise ValueError(f"key={field!r} must have at most {_MAX_CHARS} characters; one has {len(text):,}")
    return text


def _counted(repeated: Mapping[str, Any]) -> str:
    return "one value occurs" if len(repeated) == 1 else f"{len(repeated):,} values occur"


def _listed(repeated: Mapping[str, list[int]]) -> str:
    shown = [f"{row!r} (inputs {_some(at)})" for row, at in list(repeated.items())[:_MAX_SHOWN]]
    return ", ".join([*shown, *(["..."] if len(repeated) > _MAX_SHOWN else [])])


def _some(at: Sequence[int]) -> str:
    return ", ".join([*map(str, at[:_MAX_SHOWN]), *(["..."] if len(at) > _MAX_SHOWN else [])])
