"""The program: its commands, its help, and how it ends."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter

from ..core.errors import BatchAgentError, SpecError
from ..core.safe_text import safe_text
from .command_table import COMMANDS
from .options.help_groups import OPTIONS
from .signals import Interrupted, end_at_once_by_signals
from .usage_errors import check_values, format_usage_error


def _version() -> str:
    from importlib.metadata import version  # nobody but --version waits for it

    return version("batch-agent")


def _shown(default: Any) -> str | None:
    """A default as the help shows it: none for a flag, which is off where it is not named."""
    if default is None or default is False:
        return None
    return f"{default:g}" if isinstance(default, float) else str(default)


def _filled(_command: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """With what a config file says."""
    from .config import fill  # help waits for nothing that only commands need

    fill(app, commands, arguments)


def _example(lines: Iterable[str]) -> str:
    return "\n".join(["For example:", *(f"  {line}" for line in lines)])


_EPILOGUE = """\
For example:
  batch-agent run --task "Summarize: {text}" --inputs texts.jsonl
  batch-agent run --help

Ends with 0 when all agents answered, 1 when some failed, 2 when it could not
start or go on, 130 after Ctrl-C, 143 after SIGTERM."""

app = App(
    name="batch-agent",
    help="Input list in, structured result list out: many tool-using agents on one inference backend.",
    help_epilogue=_EPILOGUE,
    help_format="plaintext",
    version=_version,
    config=_filled,
    default_parameter=Parameter(negative=(), show_default=_shown),
)
app["--help"].group = app["--version"].group = OPTIONS
app["--help"].help = "Show this, or with a command what it takes."
app["--version"].help = "Show the version."
for _position, _command in enumerate(COMMANDS):
    app.command(
        _command.where,
        name=_command.name,
        help=_command.help,
        help_epilogue=_example(_command.examples) if _command.examples else "",
        group_parameters=_command.heading,
        sort_key=_position,
    )
app.command(
    "batch_agent.cli.commands.completion:install_completion",
    name="--install-completion",
    help="Let the shell complete commands and options.",
    help_epilogue="",
    group=OPTIONS,
    group_parameters=OPTIONS,
)


def main() -> None:
    try:
        command = _understood()
        status = command()
    except BatchAgentError as error:
        _end(str(error))
    except Interrupted as error:
        _leave(error.status)
    except KeyboardInterrupt:
        _leave(130)
    _leave(status if isinstance(status, int) else 0)


def _understood() -> Callable[[], Any]:
    """What was typed, ready to be done. Raises SpecError."""
    check_values(sys.argv[1:])
    try:
        command, words, _ = app.parse_args(sys.argv[1:], print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise SpecError(format_usage_error(error, app)) from error
    except SpecError:
        raise
    except ValueError as error:  # of the dataclasses that options are put into
        raise SpecError(f"{error}.") from error
    return partial(command, *words.args, **words.kwargs)


def _end(why: str) -> NoReturn:
    print(f"batch-agent: {safe_text(why)}", file=sys.stderr)
    _leave(2)


def _leave(status: int) -> NoReturn:
    end_at_once_by_signals()
    sys.exit(status)
