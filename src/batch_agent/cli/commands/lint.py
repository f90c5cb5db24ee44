"""batch-agent lint."""

from rich.console import Console

from ...api import BatchAgent
from ...core.safe_text import safe_text
from ...observe.text.prefix import prefix_lines
from ..options.run import CommandOptions
from ..signals import interruptible


def lint(asked: CommandOptions, *, exact: bool = False) -> int:
    """Prints what it finds; returns 1 if it found something.

    Parameters
    ----------
    exact
        Connect to the backend, and count tokens as it does.
    """
    report = interruptible(BatchAgent.lint(exact=exact, **asked.options()))
    console = Console(highlight=False, soft_wrap=True)
    for line in prefix_lines(report):
        console.print(safe_text(line), markup=False)
    return 1 if report.findings else 0
