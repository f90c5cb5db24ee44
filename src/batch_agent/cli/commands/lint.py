"""batch-agent lint."""

from contextlib import nullcontext

from rich.console import Console

from ...api import BatchAgent
from ...core.safe_text import safe_text
from ...observe.text.prefix import prefix_lines
from ..object_files import OptionalLocation, open_to_read
from ..options.command_options import CommandOptions
from ..signals import interruptible


def lint(options: CommandOptions, *, exact: bool = False, checkpoint: OptionalLocation = None) -> int:
    """Prints the prefix report; returns 1 if there are findings.

    Parameters
    ----------
    exact
        Connect to the backend, and count tokens with its tokenizer.
    checkpoint
        Checkpoint directory of an earlier run: also report what placing the tool results that its agents shared first
        would save.
    """
    with nullcontext() if checkpoint is None else open_to_read(checkpoint) as folder:
        kwargs = {**options.to_kwargs(), "checkpoint_dir": folder}
        report = interruptible(BatchAgent.lint(exact=exact, **kwargs))
    console = Console(highlight=False, soft_wrap=True)
    for line in prefix_lines(report):
        console.print(safe_text(line), markup=False)
    return 1 if report.findings else 0
