"""Command-line application: commands, help and exit status."""

import errno
import os
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
from .usage_errors import check_values, format_usage_error, with_flags


def _version() -> str:
    from ..version import __version__  # imported only for --version

    return __version__


def _format_default(default: Any) -> str | None:
    """Formats a default for the help. Flags are off by default, which is not shown."""
    if default is None or default is False:
        return None
    return f"{default:g}" if isinstance(default, float) else str(default)


def _apply_config_file(_command: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fills arguments that are not on the command line from the config file."""
    from .config_file import fill  # imported only for commands: --help starts faster

    fill(app, commands, arguments)


def _format_examples(lines: Iterable[str]) -> str:
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])


_EPILOGUE = """\
Examples:
  batch-agent run --task "Summarize: {text}" --inputs texts.jsonl
  batch-agent run --help

Exit status: 0 if all agents answered, 1 if some failed, 2 if the command could
not start or continue, 130 after Ctrl-C, 143 after SIGTERM."""

app = App(
    name="batch-agent",
    help="Run many tool-using LLM agents over a list of inputs: input list in, structured result list out.",
    help_epilogue=_EPILOGUE,
    help_format="plaintext",
    version=_version,
    config=_apply_config_file,
    default_parameter=Parameter(negative=(), show_default=_format_default),
)
app["--help"].group = app["--version"].group = OPTIONS
app["--help"].help = "Show this help, or the help of a command."
app["--version"].help = "Show the version."
for _position, _command in enumerate(COMMANDS):
    app.command(
        _command.target,
        name=_command.name,
        help=_command.help,
        help_epilogue=_format_examples(_command.examples) if _command.examples else "",
        group_parameters=_command.group,
        sort_key=_position,
    )
app.command(
    "batch_agent.cli.commands.completion:install_completion",
    name="--install-completion",
    help="Install shell completion of commands and options.",
    help_epilogue="",
    group=OPTIONS,
    group_parameters=OPTIONS,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file that cannot grow. They concern standard output here: the files of a run have errors of their own."""


def main() -> None:
    _open_standard_streams()
    try:
        command = _parse()
        status = command()
    except SpecError as error:
        _fail(_as_typed(str(error)))
    except BatchAgentError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard_stdout()
        _fail(f"The output cannot be written: {error.strerror}. Free some space, or send it elsewhere.")
    except Interrupted as error:
        _exit(error.status)
    except KeyboardInterrupt:
        _exit(130)
    _exit(status if isinstance(status, int) else 0)


def _discard_stdout() -> None:
    """Sends buffered output to the null device, because flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_streams() -> None:
    """Connects standard streams that the caller has closed (`>&-`) to the null device. Otherwise the first sockets
    would get their numbers: printed text would be sent to the server, and uvloop aborts when it closes one of them."""
    for number, name, mode in (0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is that of the stream
            setattr(sys, name, open(null, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _parse() -> Callable[[], Any]:
    """Parses the command of this process and binds its arguments. Raises SpecError for a usage error."""
    check_values(sys.argv[1:])
    try:
        command, bound, _ = app.parse_args(_with_inputs_option(sys.argv[1:]), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise SpecError(format_usage_error(error, app)) from error
    except SpecError:
        raise
    except ValueError as error:  # raised by an option dataclass
        raise SpecError(f"{error}.") from error
    return partial(command, *bound.args, **bound.kwargs)


def _with_inputs_option(words: list[str]) -> list[str]:
    """Rewrites `run texts.jsonl ...` and `run - ...` as `run --inputs texts.jsonl ...`."""
    match words:
        case [("run" | "plan" | "lint" | "preview") as command, source, *others] if (
            source == "-" or not source.startswith("-")
        ):
            return [command, "--inputs", source, *others]
    return words


def _as_typed(message: str) -> str:
    """The message with flags in place of the library's option names, for commands that have these options."""
    if sys.argv[1:2] not in (["run"], ["plan"], ["lint"], ["preview"], ["resume"], ["worker"], ["template"]):
        return message
    from .options.cluster import ClusterOptions
    from .options.command_options import NAMES

    return with_flags(message, (*NAMES, *ClusterOptions.__slots__)).replace("--run-id", "--run")


def _fail(message: str) -> NoReturn:
    print(f"batch-agent: {safe_text(message)}", file=sys.stderr)
    _exit(2)


def _exit(status: int) -> NoReturn:
    end_at_once_by_signals()
    sys.exit(status)
