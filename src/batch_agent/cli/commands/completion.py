"""batch-agent --install-completion."""

from pathlib import Path
from typing import Literal

from cyclopts.completion import detect_shell
from cyclopts.completion.detect import ShellDetectionError

from ...core.errors import SpecError

_FOUND = {
    "bash": "A line in ~/.bashrc loads it",
    "zsh": "A line in ~/.zshrc lets compinit find it",
    "fish": "Fish finds it there",
    "powershell": "A line in your profile loads it",
}


def install_completion(
    *, shell: Literal["bash", "zsh", "fish", "powershell"] | None = None, output: Path | None = None
) -> None:
    """Writes the script that completes this program's commands and options. Raises SpecError where it cannot.

    Parameters
    ----------
    shell
        Which one; if not given, the one that this is typed in.
    output
        The file to write, to load it yourself; if not given, it goes where the shell finds it.
    """
    from ..app import app  # it imports this one when it is called

    try:
        ours = shell or detect_shell()
        path = app.install_completion(shell=ours, output=output, add_to_startup=output is None)
    except ShellDetectionError as error:
        raise SpecError("Which shell this is cannot be told: say it with --shell.") from error
    except OSError as error:
        raise SpecError(f"The completion script cannot be written: {error}.") from error
    print(f"Written: {path}")
    print(f"{_FOUND[ours]}: open a new shell to use it." if output is None else f"To use it: source {path}")
