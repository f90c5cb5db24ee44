"""Task templates: `{field}` is replaced, everything else stays unchanged."""

import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.images import Image, as_image, images_of
from ..core.json import dumps_any, replace_surrogates
from ..core.schema import is_model
from ..core.task_fields import Fields
from .field_paths import PATH, FieldMissing, find
from .jsonable import to_jsonable

_SPEC = r"[^{}\"']*"
_LENIENT = re.compile(
    rf"(?<!\{{)\{{(?P<escaped>\{{(?:{PATH}(?:![rsa])?(?::{_SPEC})?|[^\W\d][^{{}}\"'\n]*)\}})\}}"
    rf"|\{{(?P<path>{PATH})(?:!(?P<conversion>\w))?(?::(?P<spec>{_SPEC}))?\}}"
    r"|(?:(?<!\{)\{|\{(?=\S))(?P<key>[^{}\"'\n:!]+|[^\W\d][^{}\n]*)\}"
)
# Format specs that format() accepts for numbers, strings or dates.
_NUMBER = re.compile(r"(?:[^{}]?[<>=^])?[-+ ]?z?\#?0?\d*[_,]?(?:\.\d+)?[bcdeEfFgGnosxX%]?")
_MOMENT = re.compile(r"%[A-Za-z]")
_MAX_WIDTH = 10_000
"""Maximum width and precision of a field."""
_FIELD_NAME = re.compile(r"[^\W\d]\w*(?:[ -]\w+)*")
_CONVERSIONS: Mapping[str | None, Callable[[Any], Any]] = {"r": repr, "s": str, "a": ascii, None: lambda value: value}


_BYTES = (bytes, bytearray, memoryview)
_DECODE = "Decode bytes before the run, as in data.decode('utf-8'); only images are sent as data."
MARK_OPEN, _MARK_CLOSE = "\ufdd0", "\ufdd1"
"""Marks around the digest of an image in a rendered task. Unicode reserves them for internal use. A text that contains
them anyway stays unchanged, unless its digest is that of an image of the same input."""
MARK_CHARS = 34
"""Length of the mark of an image."""
_NO_IMAGE = frozenset({str, int, float, bool, type(None), dict})
_MARK = re.compile(f"{MARK_OPEN}([0-9a-f]{{32}}){_MARK_CLOSE}")


class BadInput(ValueError):
    """Raised for an input that does not fit the task. The message names the field and the fix."""


@dataclass(frozen=True, slots=True)
class _Field:
    path: str
    conversion: str | None = None
    spec: str = ""
    is_certain: bool = True
    """False for text such as `{First Name}`, which is a field only for inputs with this key, until `with_fields`."""
    is_named: bool = False
    """Whether it is rendered with its name, so that it can be moved."""
    is_image: bool = False
    """Whether its texts are paths or URLs of images."""

    @property
    def source(self) -> str:
        conversion = f"!{self.conversion}" if self.conversion else ""
        return "{" + self.path + conversion + (f":{self.spec}" if self.spec else "") + "}"


@dataclass(frozen=True, slots=True)
class Template:
    """Parsed task. Braces inside values are never interpreted."""

    parts: tuple[str | _Field, ...]
    is_free: bool = False
    """Whether fields may come in any order, each rendered with its name."""

    @property
    def uncertain_fields(self) -> tuple[str, ...]:
        """Text in braces that is a field only for inputs with exactly this key."""
        return tuple(part.path for part in self.parts if isinstance(part, _Field) and not part.is_certain)

    @property
    def has_fields(self) -> bool:
        """Whether the template has a field, or text in braces that may be one."""
        return bool(self.certain_cells) or any(map(is_name, self.uncertain_fields))

    @property
    def fields(self) -> tuple[str, ...]:
        """The distinct names of the fields, in order."""
        return tuple(dict.fromkeys(self.cell_names))

    @property
    def cell_names(self) -> tuple[str, ...]:
        """Name of the field of each cell. A field that is used twice has two cells."""
        return tuple(part.path for part in self.parts if isinstance(part, _Field))

    @property
    def certain_cells(self) -> frozenset[int]:
        """Cells that are a field for every input. Others may be text in braces."""
        fields = [part for part in self.parts if isinstance(part, _Field)]
        return frozenset(cell for cell, part in enumerate(fields) if part.is_certain)

    def with_fields(self, names: Collection[str]) -> "Template":
        """The template in which text in braces with one of these names is a field of every input."""
        parts = tuple(
            replace(part, is_certain=True) if isinstance(part, _Field) and part.path in names else part
            for part in self.parts
        )
        return replace(self, parts=parts)

    def with_images(self, names: Collection[str]) -> "Template":
        """The template in which these fields are images, with texts that are paths or URLs. Raises SpecError for a name
        that is not a field."""
        if unknown := [name for name in names if name not in self.cell_names]:
            raise SpecError(f"images={list(names)!r}: the task has no field {{{unknown[0]}}}.")
        parts = (replace(p, is_image=True) if isinstance(p, _Field) and p.path in names else p for p in self.parts)
        return replace(self, parts=tuple(parts))

    def images(self, value: Any) -> dict[str, Image]:
        """The images of an input that the task shows, by the digests in their marks. Raises BadInput."""
        lookup = self._lookup(value)
        fields = [part for part in self.parts if isinstance(part, _Field)]
        shown = [part for part in fields if part.is_certain or part.path in lookup]
        return {_mark_digest(image): image for part in shown for image in _images(part, _value(part, lookup)[1])}

    def render(self, value: Any) -> str:
        """Renders the task for an input as valid Unicode, with a mark for each image. Raises BadInput."""
        lookup = self._lookup(value)
        shown = [part if isinstance(part, str) else _show(part, lookup) for part in self.parts]
        return replace_surrogates("".join(shown))

    def cells(self, value: Any) -> list[str]:
        """Rendered values of one input, one per field of the task. Raises BadInput."""
        lookup = self._lookup(value)
        return [_show(part, lookup) for part in self.parts if isinstance(part, _Field)]

    def _lookup(self, value: Any) -> Mapping[str, Any]:
        if type(value) is dict:  # the usual case; the checks below are slow
            return value
        if isinstance(value, str) or as_image(value) is not None:
            return self._for_text(value)
        if is_model(value):
            return dict(value)
        if isinstance(value, Mapping):
            return value
        hint = f" {_DECODE}" if isinstance(value, _BYTES) else ""
        raise BadInput(f"An input must be a dict, a string or a Pydantic model, not {type(value).__name__}.{hint}")

    def _for_text(self, text: Any) -> Mapping[str, Any]:
        names = dict.fromkeys(part.path for part in self.parts if isinstance(part, _Field) and part.is_certain)
        if len(names) > 1:
            listed = ", ".join(f"{{{name}}}" for name in names)
            kind = "a plain string" if isinstance(text, str) else "an image"
            raise BadInput(f"The input is {kind} but the task has several fields ({listed}): use dicts.")
        return dict.fromkeys(names, text)


def template_of(task: str | Fields, first: Sequence[Any] = ()) -> Template:
    """Template of a task. `first`: the first input, if known; all of its fields are used if the task names none."""
    if isinstance(task, str):
        return parse_template(task)
    named = task.named(names_in(first[0]) if first else ())
    fields = (_Field(name, is_named=True) for name in named.names)
    return Template((f"{named.instruction}\n\n", *fields), is_free=True)


def parse_template(task: str) -> Template:
    """Parses a task in the syntax of str.format. If the task is not valid in it (JSON, LaTeX, code), only `{name}` is a
    field and every other brace is text. In both cases, `{{name}}` is the text `{name}`. Raises SpecError for a format
    with an absurd width."""
    strict = _parse_strict(task)
    return strict if strict is not None else _parse_lenient(task)


def _parse_strict(task: str) -> Template | None:
    parts: list[str | _Field] = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(task):
            if literal:
                parts.append(literal)
            if name is None:
                continue
            if not (re.fullmatch(PATH, name) and _is_format(spec or "") and conversion in _CONVERSIONS):
                return None
            parts.append(_Field(name, conversion, spec or ""))
    except ValueError:
        return None
    return Template(tuple(parts))


def _parse_lenient(task: str) -> Template:
    parts: list[str | _Field] = []
    end = 0
    for match in _LENIENT.finditer(task):
        parts.append(task[end : match.start()])
        if match["escaped"]:
            parts.append(match["escaped"])
        elif match["path"] and match["conversion"] in _CONVERSIONS and _is_format(match["spec"] or ""):
            parts.append(_Field(match["path"], match["conversion"], match["spec"] or ""))
        else:  # `{color:red}`, unless an input has exactly such a key
            parts.append(_Field(match[0][1:-1], is_certain=False))
        end = match.end()
    parts.append(task[end:])
    return Template(tuple(part for part in parts if part != ""))


def _is_format(spec: str) -> bool:
    """Whether format() accepts the spec. Raises SpecError for a width that would exhaust memory."""
    if not re.fullmatch(_SPEC, spec) or not (_NUMBER.fullmatch(spec) or _MOMENT.search(spec)):
        return False
    for number in re.findall(r"\d+", spec):
        if len(number.lstrip("0")) > len(str(_MAX_WIDTH)) or int(number) > _MAX_WIDTH:
            raise SpecError(
                f"The task has a field with the format {spec[:80]!r}: its width must be at most {_MAX_WIDTH:,}."
            )
    return True


def _show(part: _Field, lookup: Mapping[str, Any]) -> str:
    if not part.is_certain and part.path not in lookup:
        return part.source
    part, value = (part, lookup[part.path]) if part.path in lookup else _value(part, lookup)
    try:
        if part.is_image or (type(value) not in _NO_IMAGE and not part.conversion and not part.spec):
            marks = "".join(map(_mark, _images(part, value)))
            if marks:
                return block(part.path, marks) if part.is_named else marks
        if part.is_named:
            return block(part.path, _text(value))
        if part.conversion is None and not part.spec:
            return _text(value)
        return format(_CONVERSIONS[part.conversion](value), part.spec)
    except Exception as error:  # the __str__ or __format__ of a user's object may raise anything
        raise BadInput(f"The field {part.source} cannot format its {type(value).__name__}: {error}.") from error


def _value(part: _Field, lookup: Mapping[str, Any]) -> tuple[_Field, Any]:
    """The field as the input names it, and its value."""
    if part.path not in lookup and (part.spec or part.conversion) and part.source[1:-1] in lookup:
        part = replace(part, path=part.source[1:-1], conversion=None, spec="")  # a column such as `Unnamed: 0`
    return part, lookup[part.path] if part.path in lookup else _find(part, lookup)


def _images(part: _Field, value: Any) -> tuple[Image, ...]:
    """Images of a field. Raises ValueError if the value cannot be an image, although the user declared the field as
    one."""
    if not part.is_image:
        return images_of(value)
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(Image(each) if isinstance(each, str | PurePath) else as_image(each) or Image(each) for each in values)


def _mark_digest(image: Image) -> str:
    return blake2b(repr(image).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _mark(image: Image) -> str:
    return f"{MARK_OPEN}{_mark_digest(image)}{_MARK_CLOSE}"


def without_marks(text: str, images: Collection[str]) -> tuple[str, tuple[tuple[int, str], ...]]:
    """The text without the marks of these images, and the position and digest of each mark."""
    parts, positions, end, length = list[str](), list[tuple[int, str]](), 0, 0
    for mark in _MARK.finditer(text):
        if mark[1] in images:
            parts.append(text[end : mark.start()])
            length += mark.start() - end
            end = mark.end()
            positions.append((length, mark[1]))
    return "".join([*parts, text[end:]]), tuple(positions)


def block(name: str, text: str) -> str:
    """A named value on lines of its own."""
    return f"<{name}>\n{text}\n</{name}>\n" if "\n" in text else f"{name}: {text}\n"


def is_name(text: str) -> bool:
    """Whether text in braces looks like the name of a field: letters and digits, with single spaces or hyphens."""
    return _FIELD_NAME.fullmatch(text) is not None


def names_in(value: Any) -> Iterable[str]:
    """The names of an input's fields. Plain text is called `input`."""
    if is_model(value):
        return type(value).model_fields
    return map(str, value) if isinstance(value, Mapping) else ("input",)


def _find(part: _Field, lookup: Mapping[str, Any]) -> Any:
    try:
        return find(lookup, part.path)
    except FieldMissing as missing:
        known = ", ".join(map(str, list(lookup)[:12])) or "none"
        meant = f"Did you mean {{{missing.nearest}}}? " if missing.nearest else ""
        raise BadInput(
            f"The task names the field {part.source} but the input has no {part.path!r} (its fields: {known}). {meant}"
            f"Add the field to the input, or write {{{part.source}}} if the braces are meant as text."
        ) from None
    except Exception as error:  # a property of a user's object may raise anything
        raise BadInput(f"The field {part.source} cannot be read: {type(error).__name__}: {error}.") from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if type(value) in (int, float):
        return str(value)
    if isinstance(value, Enum):
        return _text(value.value)
    if is_model(value) or isinstance(value, Mapping | list | tuple | set | frozenset) or is_dataclass(value):
        return dumps_any(value, _plain)
    if isinstance(value, _BYTES):
        raise _not_text(value)
    return str(value)


def _plain(value: Any) -> Any:
    if as_image(value) is not None:
        raise ValueError("an image inside of other data is not sent. Name its own field, as in {item.photo}")
    if is_model(value):
        if (data := _bytes_in(value.model_dump())) is not None:
            raise _not_text(data)
        return to_jsonable(value)
    if isinstance(value, _BYTES):
        raise _not_text(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):  # for the same order in every process
        return sorted(value, key=repr)
    return list(value) if isinstance(value, tuple) else str(value)


def _bytes_in(value: Any) -> Any:
    """The first bytes in a value, at any depth; None if there are none."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return next((found for part in value if (found := _bytes_in(part)) is not None), None)
    return value if isinstance(value, _BYTES) else None


def _not_text(value: bytes | bytearray | memoryview) -> ValueError:
    return ValueError(f"a prompt is text, and this is {len(value):,} bytes of data. {_DECODE.rstrip('.')}")
