"""Import of schemas, tools and runtimes by the names given on the command line."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any, cast

import orjson

from ..core.errors import SpecError
from ..core.program_runtime import Runtime
from ..core.validation import suggestion
from ..tools import Tool, as_tool, grep_tool, list_files_tool, read_file_tool

FILE_TOOLS = ("read_file", "list_files", "grep")
TOOLS = (*FILE_TOOLS, "http_get", "web_search")
"""Names of the built-in tools. The tools in FILE_TOOLS read the files of one directory."""
OPENCODE, CODEX = "opencode", "codex"
PROGRAMS = (OPENCODE, CODEX)
"""Names of the built-in runtimes."""


def load_schema(name: str, option: str = "--schema") -> Any:
    """A JSON schema from a .json file, or a type as module:Name. Raises SpecError."""
    if name.endswith(".json"):
        try:
            return orjson.loads(Path(name).read_bytes())
        except OSError as error:
            raise SpecError(f"{option} {name!r} cannot be read: {error.strerror}.") from error
        except orjson.JSONDecodeError as error:
            raise SpecError(f"{option} {name!r} is not valid JSON: {error}.") from error
    if name.startswith("{"):
        raise SpecError(f"{option}: write the JSON schema into a .json file, and give its name.")
    return _import(name, option)


def load_tools(
    names: list[str], root: Path, check: Callable[[str, Any], None] | None = None, *, encoding: str | None = None
) -> list[Tool]:
    """Built-in tools by name, and user tools as module:function. Raises SpecError.

    `root`: directory that file tools may read. `encoding`: encoding of its files, if not UTF-8. `check`: called with
    the name and the imported object of each user tool; raises SpecError if the tool must not be used."""
    built_in = {
        "read_file": read_file_tool(root, encoding=encoding),
        "list_files": list_files_tool(root),
        "grep": grep_tool(root, encoding=encoding),
        "http_get": Tool.http_get,
        "web_search": Tool.web_search,
    }
    return [built_in[name] if name in built_in else _user_tool(name, check) for name in names]


def _user_tool(name: str, check: Callable[[str, Any], None] | None) -> Tool:
    found = _import(name, "--tools")
    if check is not None:
        check(name, found)
    return as_tool(found)


def load_scorers(names: Sequence[str], folder: Path) -> list[Any]:
    """Scorers by name, and functions as module:function. The rubric of a judge may be a file. Raises SpecError.

    `folder`: directory of rubric files."""
    if not names:
        return []
    from ..scores.judge import judge  # imported only for runs that are scored
    from ..scores.scorer import parse_scorer

    def scorer(name: str) -> Any:
        before, _, argument = name.partition(":")
        own, _, kind = before.rpartition("=")
        if kind == "judge":
            return judge(_rubric(argument, folder), name=own or "judge")
        return _import(name, "--score") if is_function(name) else parse_scorer(name)

    return [scorer(name) for name in names]


def is_function(scorer: str) -> bool:
    """Whether a scorer on the command line is code to import."""
    from ..scores.scorer import BUILTIN

    before, _, argument = scorer.partition(":")
    return bool(argument) and before.rpartition("=")[2] not in (*BUILTIN, "judge")


def _rubric(text: str, folder: Path) -> str:
    """The text itself, or the content of a file in `folder`."""
    try:
        return (folder / text).read_text(encoding="utf-8") if (folder / text).is_file() else text
    except OSError:  # the text is too long for a file name
        return text


def load_servers(names: list[str], folder: Path) -> list[Any]:
    """MCP servers by command or URL; commands are started in `folder`. Raises SpecError."""
    if not names:
        return []
    from ..tools import MCP  # imported only for runs with servers

    def server(name: str) -> Any:
        try:
            config = MCP(name) if name.startswith(("http://", "https://")) else MCP(name, cwd=folder)
            config.check_installed()
        except (SpecError, ValueError) as error:
            whole = f" Put a command and its arguments in quotes: --mcp '{' '.join(names)}'."
            hint = whole if (folder / name).is_file() and len(names) > 1 else ""
            raise SpecError(f"--mcp {name!r}: {error}{hint}") from error
        return config

    return [server(name) for name in names]


def load_runtime(name: str | None, workdir: Path | None) -> Runtime | None:
    """`opencode` or `codex` with copies of `workdir`, or a user runtime as module:name. Raises SpecError."""
    if name in PROGRAMS:
        from ..programs.runtimes import CodexRuntime, OpenCodeRuntime  # imported only for runs of programs

        return CodexRuntime(workdir=workdir) if name == CODEX else OpenCodeRuntime(workdir=workdir)
    if workdir is not None:
        raise SpecError(
            f"--workdir needs --runtime {' or '.join(PROGRAMS)}. Your own runtime sets its directory itself."
        )
    return None if name is None else cast(Runtime, _import(name, "--runtime"))


def importable_from(folder: Path) -> None:
    """Adds a directory to the module search path."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, option: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        known = suggestion(name, TOOLS) if option == "--tools" else ""
        raise SpecError(f"{option} {name!r}: expected module:name, such as my_tools:search.{known}")
    importable_from(Path.cwd())
    if module.endswith(".py"):
        raise SpecError(
            f"{option} {name!r}: write {module.removesuffix('.py').replace('/', '.')}:{attribute}, without .py."
        )
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise SpecError(f"{option} {name!r}: module {module!r} cannot be imported: {_reason(error)}.") from error
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise SpecError(f"{option} {name!r}: module {module!r} has no attribute {attribute!r}.") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return str(error)
    last = extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}, line {last.lineno})"
    return f"{type(error).__name__}: {error}{where}"
