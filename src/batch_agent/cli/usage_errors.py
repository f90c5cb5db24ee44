"""Messages for usage errors of the command line."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from cyclopts import (
    App,
    Argument,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from ..core.errors import SpecError
from ..core.validation import explain_unknown_name as explain_unknown_name
from ..core.validation import suggestion

_NO_TASK = """\
{name} needs --task and --inputs, or a batch.toml with both in the current directory.
  batch-agent {name} --task "Summarize: {{text}}" --inputs texts.jsonl
  batch-agent init (creates a project that runs without changes)
  batch-agent {name} --help (shows all options)"""
FORMER = ("command option", "option")
"""Option names of batch-agent 0.2, on the command line and in its spec files."""


def format_usage_error(error: CycloptsError, app: App) -> str:
    """Describes what is wrong, in which option or command, and which help to read."""
    chain = error.command_chain or ()
    command = ["batch-agent", *chain]
    match error:
        case MissingArgumentError(argument=Argument() as argument):
            known = _options(app[chain[0]].assemble_argument_collection()) if chain else []
            if unknown := [token for token in error.unused_tokens or () if _is_unknown(token, known)]:
                what = _unknown(unknown[0], known)
            elif argument.name == "--task" and "--task" not in _typed(error):
                return _NO_TASK.format(name=command[-1])
            else:
                what = _missing(error, argument, command[-1])
        case UnknownOptionError(token=token) if token.source == "cli":
            what = _unknown(token.keyword or token.value, _options(error.argument_collection))
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            what = f"{first!r} is unexpected: options begin with --.{_quote_hint(first)}"
        case UnknownCommandError(unused_tokens=[first, *_]) if first.startswith("-"):
            what = _unknown(first, ("--help", "--version", "--install-completion"))
        case UnknownCommandError(unused_tokens=[first, *_]):
            what = f"Unknown command {first!r}.{suggestion(first, (name for name in app if not name.startswith('-')))}"
        case _:
            what = str(error)
    return f"{what}\nSee {' '.join(command)} --help"


def _quote_hint(word: str) -> str:
    """Hint for a pattern that the shell has expanded to file names."""
    return " Put a pattern of files in quotes: 'docs/*.md'." if Path(word).exists() else ""


def check_values(typed: Sequence[str]) -> None:
    """Raises SpecError for an empty value, for example from an unset shell variable: an empty path would mean the
    current directory, and an empty name no name."""
    for before, word in zip(["", *typed], typed, strict=False):
        option, equals, value = word.partition("=")
        if word == "" and before.startswith("--"):
            raise SpecError(f"{before} needs a value, got an empty string.")
        if option.startswith("--") and equals and not value:
            raise SpecError(f"{option} needs a value, got an empty string.")
        if word == "":
            raise SpecError("An argument is empty. Check for an unset shell variable.")


_BOTH = re.compile(r"\b\w+(?:='[^']*')? \((--[a-z-]+[^()]*)\)")
"""An option of the Python API, followed by its flag in parentheses."""
_OTHER_FLAGS = {"output_schema": "--schema", "checkpoint_dir": "--checkpoint"}
_OR_NONE = re.compile(r",? or None(?=[;.,])")
"""A value that exists only in the Python API."""
_PRICES = re.compile(r"--prices \{'([^']*)': \([^)]*\)\}")
_NEGATED = re.compile(r"\b(hoist|reorder)=False\b")


def with_flags(message: str, options: Iterable[str]) -> str:
    """Converts a message of the library for the command line: `--max-turns must be ...`, not `max_turns`. `options`:
    names of options in the Python API."""
    message = _NEGATED.sub(r"--no-\1", _BOTH.sub(r"\1", message)).replace("=True", "=").replace("=...", "=")
    message = _OR_NONE.sub("", message)
    flags = {**{name: f"--{name.replace('_', '-')}" for name in options}, **_OTHER_FLAGS}
    names = "|".join(sorted(flags, key=len, reverse=True))

    def flag(match: re.Match[str]) -> str:
        name, mark = match["name"], match["mark"]
        is_option = "_" in name or mark == "=" or match.start() == 0
        has_value = mark == "=" and match.string[match.end() : match.end() + 1].strip(" .,:;)")
        return f"{flags[name]}{' ' if has_value else mark.rstrip('=')}" if is_option else match[0]

    said = re.sub(rf"(?<![\w.{{'-])(?P<name>{names})(?P<mark>=(?!=)| must\b| needs\b|\b(?![\w(}}/]))", flag, message)
    said = said.replace("Stage 'reduce': --model ", "Stage 'reduce': --reducer-model ")
    return _PRICES.sub(r"--prices \1=INPUT,CACHED,OUTPUT", said)


def _unknown(option: str, known: Iterable[str]) -> str:
    name = option.partition("=")[0]
    return f"Unknown option {name}.{explain_unknown_name(FORMER, name, known, '{}')}"


def _is_unknown(token: str, known: Collection[str]) -> bool:
    return token.startswith("--") and token.partition("=")[0] not in known


def _options(arguments: Iterable[Argument]) -> list[str]:
    return [name for argument in arguments if argument.show for name in argument.names if name.startswith("--")]


def _missing(error: MissingArgumentError, argument: Argument, command: str) -> str:
    if argument.name in _typed(error):
        return f"{argument.name} needs a value."
    name = argument.name if argument.index is None else argument.name.lstrip("-").upper()
    return f"{command} needs {name}."


def _typed(error: CycloptsError) -> list[str]:
    return error.root_input_tokens or []
