"""batch-agent --install-completion."""

from pathlib import Path
from typing import Literal

from cyclopts.completion import detect_shell
from cyclopts.completion.detect import ShellDetectionError

from ...core.errors import SpecError

_LOADED_BY = {
    "bash": "It is loaded by a line in ~/.bashrc",
    "zsh": "It is loaded by compinit, with a line in ~/.zshrc",
    "fish": "It is loaded by fish",
    "powershell": "It is loaded by a line in your profile",
}


def install_completion(
    *, shell: Literal["bash", "zsh", "fish", "powershell"] | None = None, output: Path | None = None
) -> None:
    """Writes the shell completion script. Raises SpecError.

    Parameters
    ----------
    shell
        Shell. By default, the current one.
    output
        File to write. By default, the shell's own completion directory.
    """
    from ..app import app  # app imports this module when the command is called

    try:
        ours = shell or detect_shell()
        path = app.install_completion(shell=ours, output=output, add_to_startup=output is None)
    except ShellDetectionError as error:
        raise SpecError("The shell cannot be detected. Choose one with --shell.") from error
    except OSError as error:
        raise SpecError(f"The completion script cannot be written: {error}.") from error
    print(f"Wrote {path}")
    print(f"{_LOADED_BY[ours]}. Open a new shell to use it." if output is None else f"To use it: source {path}")
