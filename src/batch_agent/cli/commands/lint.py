"""batch-agent lint."""

from contextlib import nullcontext

from rich.console import Console

from ...api import BatchAgent
from ...core.safe_text import safe_text
from ...observe.text.prefix import prefix_lines
from ..options.command_options import CommandOptions
from ..run_address import OptionalRunLocation, check_unnamed, open_run
from ..signals import interruptible


def lint(
    options: CommandOptions, *, exact: bool = False, checkpoint: OptionalRunLocation = None, run: str | None = None
) -> int:
    """Prints the prefix report; returns 1 if there are findings.

    Parameters
    ----------
    exact
        Connect to the backend, and count tokens with its tokenizer.
    checkpoint
        Checkpoint directory of an earlier run, also in an object store, or the URL of a Redis server: also report what
        placing the tool results that its agents shared first would save.
    run
        Name of that run, if --checkpoint is the URL of a Redis server.
    """
    if checkpoint is None:
        check_unnamed(run)
    with nullcontext() if checkpoint is None else open_run(checkpoint, run) as opened:
        kwargs = {**options.to_kwargs(), "checkpoint_dir": None if opened is None else opened.folder}
        report = interruptible(BatchAgent.lint(exact=exact, **kwargs))
    console = Console(highlight=False, soft_wrap=True)
    for line in prefix_lines(report):
        console.print(safe_text(line), markup=False)
    return 1 if report.findings else 0
