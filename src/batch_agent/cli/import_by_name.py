"""Schemas and tools by the names that people give on the command line."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import Any, cast

import orjson

from ..core.errors import SpecError
from ..core.program_runtime import Runtime
from ..tools import Tool, as_tool, grep_tool, list_files_tool, read_file_tool

FILE_TOOLS = ("read_file", "list_files", "grep")
TOOLS = (*FILE_TOOLS, "http_get", "web_search")
"""That have a name of their own; those of FILE_TOOLS see the files of one folder."""
OPENCODE = "opencode"


def load_schema(name: str, option: str = "--schema") -> Any:
    """A JSON schema from a .json file, or a type as module:Name."""
    if name.endswith(".json"):
        try:
            return orjson.loads(Path(name).read_bytes())
        except OSError as error:
            raise SpecError(f"{option} {name!r} cannot be read: {error.strerror}.") from error
        except orjson.JSONDecodeError as error:
            raise SpecError(f"{option} {name!r} is not valid JSON: {error}.") from error
    return _import(name, option)


def load_tools(names: list[str], root: Path, check: Callable[[str, Any], None] | None = None) -> list[Tool]:
    """Built-in tools by their name, own ones as module:function. `root` is what file tools may see. `check` is told
    each own one, by its name and as the module has it, and raises SpecError for one that must not be used."""
    built_in = {
        "read_file": read_file_tool(root),
        "list_files": list_files_tool(root),
        "grep": grep_tool(root),
        "http_get": Tool.http_get,
        "web_search": Tool.web_search,
    }
    return [built_in[name] if name in built_in else _own_tool(name, check) for name in names]


def _own_tool(name: str, check: Callable[[str, Any], None] | None) -> Tool:
    found = _import(name, "--tools")
    if check is not None:
        check(name, found)
    return as_tool(found)


def load_runtime(name: str | None, workdir: Path | None) -> Runtime | None:
    """`opencode`, working in copies of `workdir`, or an object of one's own as module:name."""
    if name == OPENCODE:
        from ..programs.runtimes import OpenCodeRuntime  # what only some runs need

        return OpenCodeRuntime(workdir=workdir)
    if workdir is not None:
        raise SpecError(f"--workdir is the folder of --runtime {OPENCODE}; a runtime of your own names it by itself.")
    return None if name is None else cast(Runtime, _import(name, "--runtime"))


def importable_from(folder: Path) -> None:
    """From now on, modules are also looked for in this folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, option: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SpecError(f"{option} {name!r}: write module:name, as in my_tools:search.")
    importable_from(Path.cwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise SpecError(f"{option} {name!r}: the module {module!r} cannot be imported: {_why(error)}.") from error
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise SpecError(f"{option} {name!r}: the module {module!r} has no {attribute!r}.") from error


def _why(error: Exception) -> str:
    if isinstance(error, ImportError):
        return str(error)
    last = extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}, line {last.lineno})"
    return f"{type(error).__name__}: {error}{place}"
