"""What is said of a command that cannot be understood."""

from cyclopts import Argument, CycloptsError, MissingArgumentError, UnknownCommandError, UnusedCliTokensError

_NOTHING_SAID = """\
{name} needs a task and inputs, and there is no batch.toml here that has them.
  batch-agent {name} --task "Summarize: {{text}}" --inputs texts.jsonl
  batch-agent init (makes a project that runs as it is)
  batch-agent {name} --help (shows all options)"""


def explained(error: CycloptsError) -> str:
    """What is wrong, with which word, and where to read on."""
    words = ["batch-agent", *(error.command_chain or ())]
    match error:
        case MissingArgumentError(argument=Argument() as argument):
            if argument.name == "--task" and "--task" not in _typed(error) and not error.unused_tokens:
                return _NOTHING_SAID.format(name=words[-1])
            what = _missing(error, argument, words[-1])
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            what = f"{first!r} is not expected here: all options begin with --."
        case UnknownCommandError(unused_tokens=[first, *_]):
            known = str(error).partition(" Available commands:")[0]
            what = known.replace("command", "option", 1) if first.startswith("-") else known
        case _:
            what = str(error)
    return f"{what}\nSee {' '.join(words)} --help"


def _missing(error: MissingArgumentError, argument: Argument, command: str) -> str:
    if argument.name in _typed(error):
        return f"{argument.name} needs a value."
    name = argument.name if argument.index is None else argument.name.lstrip("-").upper()
    _, meant, which = str(error).partition(" Did you mean ")
    return f"{command} needs {name}.{meant}{which}"


def _typed(error: CycloptsError) -> list[str]:
    return error.root_input_tokens or []
