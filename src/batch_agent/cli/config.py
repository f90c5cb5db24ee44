"""Options from a file: what `batch-agent run`, `plan` and `lint` take, in TOML or YAML."""

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import orjson
from cyclopts import App, Argument, ArgumentCollection
from cyclopts.config import Dict
from pydantic import TypeAdapter, ValidationError

from ..core.errors import SpecError
from ..core.spec import OPTION_NAMES
from ..core.validation import explain_unknown_name
from .usage_errors import FORMER

COMMANDS = ("run", "plan", "lint")
NAMES = ("batch.toml", "batch.yaml", "batch.yml")
"""Looked for in the current folder where neither a task nor a file is named."""

_FILES_OR_NAMES = ("inputs", "schema", "reduce-schema")
"""Texts that are the path of a file, unless they have a colon: module:Name, scheme://..."""


def fill(root: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Gives the arguments of a command what the file says of them; what was said on the command line stays.

    Raises SpecError for a file that cannot be read, a key that is no option, and a value that is none of its option's.
    """
    if not set(commands) & set(COMMANDS):
        return
    ours = {_key(argument): argument for argument in arguments if argument.show}
    file = _named(ours["config"]) or _found(ours["task"])
    if file is None:
        return
    said = read(file)
    print(f"Config: {file}", file=sys.stderr)
    checked = _checked(file, said, ours if {key.replace("_", "-") for key in said} <= set(ours) else _every(root))
    ready = {key: value for key, value in checked.items() if key in ours}
    Dict({**ready, "config": str(file)}, use_commands_as_keys=False, source=str(file))(root, commands, arguments)


def read(file: Path) -> Mapping[str, Any]:
    """What the file says, by key. Raises SpecError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"--config {str(file)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"--config {str(file)!r} is not UTF-8: {error}.") from error
    match file.suffix:
        case ".toml":
            said = _toml(file, text)
        case ".yaml" | ".yml":
            said = _yaml(file, text)
        case _:
            raise SpecError(f"--config {str(file)!r}: its name must end in .toml, .yaml or .yml.")
    if not isinstance(said, dict):
        raise SpecError(f"{str(file)!r} must hold options by name, as in max_turns: 4.")
    return {str(key): value for key, value in said.items()}


def _toml(file: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{str(file)!r} is not valid TOML: {error}.") from error


def _yaml(file: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise SpecError(
            f"{str(file)!r} needs a package: pip install 'batch-agent[yaml]'. A .toml file needs none."
        ) from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SpecError(f"{str(file)!r} is not valid YAML: {error}.") from error


def kinds(argument: Argument) -> tuple[Any, ...]:
    """The types that an option takes, without None."""
    hint = argument.hint
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(member for member in members if member is not NoneType)


def _named(config: Argument) -> Path | None:
    return Path(config.tokens[-1].value) if config.tokens else None


def _found(task: Argument) -> Path | None:
    """The file of the current folder; none for a command that is whole without."""
    if task.tokens:
        return None
    here = [name for name in NAMES if Path(name).is_file()]
    if len(here) > 1:
        raise SpecError(f"{' and '.join(here)} are both here: name the one that is meant with --config.")
    return Path(here[0]) if here else None


def _every(root: App) -> dict[str, Argument]:
    """Also what only others of the commands take."""
    every = (argument for name in COMMANDS for argument in root[name].assemble_argument_collection())
    return {_key(argument): argument for argument in every if argument.show}


def _checked(file: Path, said: Mapping[str, Any], every: Mapping[str, Argument]) -> dict[str, Any]:
    """By the names of options. What is null, or an empty list, is left to the option's default."""
    ready: dict[str, Any] = {}
    for key, value in said.items():
        name = key.replace("_", "-")
        if name not in every or name == "config":
            raise SpecError(_unknown(file, key, value, every))
        if name in ready:
            raise SpecError(f"{str(file)!r} says {key!r} twice, with a dash and with an underscore.")
        ready[name] = _value(file, key, value, every[name])
    return {name: value for name, value in ready.items() if value is not None and value != []}


def _unknown(file: Path, key: str, value: Any, every: Iterable[str]) -> str:
    if isinstance(value, dict):
        return f"{str(file)!r}: options stand at the top of the file, not below {key!r}."
    hint = explain_unknown_name(FORMER, key, [name.replace("-", "_") for name in every if name != "config"], "{}")
    if not hint and key in OPTION_NAMES:
        hint = " It is an option of BatchAgent.run, not of the command line."
    return f"{str(file)!r}: there is no option {key!r}.{hint} All of them: batch-agent run --help"


def _value(file: Path, key: str, value: Any, argument: Argument) -> Any:
    """As the option takes it; a path is that of the file's folder."""
    if value is None:
        return None
    takes = kinds(argument)
    given = [value] if isinstance(value, str) and list in [get_origin(kind) for kind in takes] else value
    try:
        TypeAdapter(argument.hint).validate_json(orjson.dumps(given, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{place}]" for place in first["loc"] if isinstance(place, int))
        raise SpecError(f"{str(file)!r}: {key}{where} is {first['input']!r}. {first['msg']}.") from error
    if isinstance(value, str) and (Path in takes or (_key(argument) in _FILES_OR_NAMES and ":" not in value)):
        return str(file.parent / Path(value).expanduser())
    return given


def _key(argument: Argument) -> str:
    return argument.name.lstrip("-")
