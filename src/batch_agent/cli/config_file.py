"""Config file with the options of `batch-agent run`, `plan`, `preview` and `lint`, in TOML or YAML."""

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
from ..core.options.backend_settings import NamedBackend, is_backend_url
from ..core.spec import OPTION_NAMES
from ..core.task_fields import STDIN, is_object_url
from ..core.validation import explain_unknown_name
from .options.json_values import named_backend, parse_backends
from .usage_errors import FORMER

COMMANDS = ("run", "plan", "preview", "lint")
NAMES = ("batch.toml", "batch.yaml", "batch.yml")
"""Searched for in the current directory if neither --task nor --config is given."""

_TABLES = ("backends", "extra", "prices")
"""Options that are tables in the file."""
_FILES_OR_NAMES = ("inputs", "schema", "reduce-schema")
"""Strings that are a file path unless they contain a colon: module:Name, scheme://..."""


def fill(root: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fills the arguments of a command from the config file. The command line overrides the file.

    Raises SpecError for a file that cannot be read, an unknown key, and a value of the wrong type.
    """
    if not set(commands) & set(COMMANDS):
        return
    ours = {_key(argument): argument for argument in arguments if _is_option(argument)}
    file = _given(ours["config"]) or _discovered(ours["task"])
    if file is None:
        return
    options = read(file)
    print(f"Config: {file}", file=sys.stderr)
    checked = _checked(
        file, options, ours if {key.replace("_", "-") for key in options} <= set(ours) else _all_arguments(root)
    )
    ready = {key: value for key, value in checked.items() if key in ours}
    # Nested below the command, because cyclopts ignores top-level keys that are names of commands, such as score.
    Dict({commands[0]: {**ready, "config": str(file)}}, source=str(file))(root[commands[0]], commands, arguments)


def read(file: Path) -> Mapping[str, Any]:
    """The options in the file, by key. Raises SpecError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"--config {str(file)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"--config {str(file)!r} is not UTF-8: {error}.") from error
    match file.suffix:
        case ".toml":
            options = _toml(file, text)
        case ".yaml" | ".yml":
            options = _yaml(file, text)
        case _:
            raise SpecError(f"--config {str(file)!r}: the file name must end in .toml, .yaml or .yml.")
    if not isinstance(options, dict):
        raise SpecError(f"{str(file)!r} must contain options by name, such as max_turns: 4.")
    return {str(key): value for key, value in options.items()}


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
            f"{str(file)!r} needs an extra: pip install 'batch-agent[yaml]'. A .toml file does not."
        ) from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SpecError(f"{str(file)!r} is not valid YAML: {error}.") from error


def backend_of(name: str, config: Path | None = None) -> NamedBackend:
    """The backend that a command names: a URL, or [backends.NAME] of a config file. That file is `config`, or else the
    one in the current directory. Raises SpecError."""
    if is_backend_url(name):
        return name
    file = config or _in_directory()
    if file is None:
        return name
    tables = read(file).get("backends")
    return named_backend(name, parse_backends([orjson.dumps(tables, default=str).decode()]) if tables else {})


def accepted_types(argument: Argument) -> tuple[Any, ...]:
    """The types that an option accepts, without None."""
    hint = argument.hint
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(member for member in members if member is not NoneType)


def _given(config: Argument) -> Path | None:
    return Path(config.tokens[-1].value) if config.tokens else None


def _discovered(task: Argument) -> Path | None:
    """The config file in the current directory; None if the command line has a task."""
    return None if task.tokens else _in_directory()


def _in_directory() -> Path | None:
    here = [name for name in NAMES if Path(name).is_file()]
    if len(here) > 1:
        raise SpecError(f"{' and '.join(here)} are both in this directory: choose one with --config.")
    return Path(here[0]) if here else None


def _all_arguments(root: App) -> dict[str, Argument]:
    """The arguments of all commands that read the file, by option name."""
    every = (argument for name in COMMANDS for argument in root[name].assemble_argument_collection())
    return {_key(argument): argument for argument in every if _is_option(argument)}


def _checked(file: Path, options: Mapping[str, Any], every: Mapping[str, Argument]) -> dict[str, Any]:
    """Values by option name. Null and empty lists count as unset. Raises SpecError."""
    ready: dict[str, Any] = {}
    for key, value in options.items():
        name = key.replace("_", "-")
        if name not in every or name == "config":
            raise SpecError(_unknown(file, key, value, every))
        if name in ready:
            raise SpecError(f"{str(file)!r} sets {key!r} twice, with a dash and with an underscore.")
        ready[name] = _value(file, key, value, every[name])
    return {name: value for name, value in ready.items() if value is not None and value != []}


def _unknown(file: Path, key: str, value: Any, every: Iterable[str]) -> str:
    if isinstance(value, dict):
        return f"{str(file)!r}: options must be at the top level of the file, not in {key!r}."
    hint = explain_unknown_name(FORMER, key, [name.replace("-", "_") for name in every if name != "config"], "{}")
    if not hint and key in OPTION_NAMES:
        hint = " It is an option of BatchAgent.run, not of the command line."
    return f"{str(file)!r}: unknown option {key!r}.{hint} To list all options: batch-agent run --help"


def _value(file: Path, key: str, value: Any, argument: Argument) -> Any:
    """Converts a value for its option. Paths are relative to the directory of the file."""
    if value is None:
        return None
    if _key(argument) in _TABLES and isinstance(value, dict):
        return [orjson.dumps(value).decode()]
    types = accepted_types(argument)
    given = [value] if isinstance(value, str) and list in [get_origin(kind) for kind in types] else value
    try:
        TypeAdapter(argument.hint).validate_json(orjson.dumps(given, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
        several = " For several endpoints, write a hostfile: 'hostfile://PATH'." if key == "backend" else ""
        raise SpecError(f"{str(file)!r}: {key}{where} is {first['input']!r}. {first['msg']}.{several}") from error
    is_file = _key(argument) in _FILES_OR_NAMES and ":" not in str(value) and value != STDIN
    if isinstance(value, str) and (Path in types or is_file) and not is_object_url(value):
        return str(file.parent / Path(value).expanduser())
    return given


def _is_option(argument: Argument) -> bool:
    """Whether the config file can set this argument. The --run of a command that reads an earlier run exists only on
    the command line: in the file, `run_id` names the run to start."""
    return argument.show and (argument.name != "--run" or "--run-id" in argument.names)


def _key(argument: Argument) -> str:
    """The key of an option, which is its name in the Python API: `run_id` for --run."""
    name = argument.name.lstrip("-")
    return "run-id" if name == "run" else name
