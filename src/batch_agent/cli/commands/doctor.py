"""batch-agent doctor."""

import sys

from rich.console import Console
from rich.text import Text

from ...backends.diagnostics import CheckState, DiagnosticCheck, diagnose
from ...core.options.backend_settings import BackendSettings, NamedBackend
from ...core.safe_text import safe_text
from ..config_file import backend_of
from ..signals import interruptible

_MARKS: dict[CheckState, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "off": ("off", "yellow"),
    "unknown": ("?", "dim"),
    "warning": ("warn", "yellow"),
    "failed": ("FAILED", "red"),
}


def doctor(url: str = "local://", *, model: str | None = None) -> int:
    """Prints the result of each check; returns 1 if the backend cannot be used.

    Parameters
    ----------
    url
        Backend, such as vllm://127.0.0.1:8000, or its name in the batch.toml of the current directory.
    model
        Model name. Not needed if the server has only one model.
    """
    backend = backend_of(url)
    named = backend.model if isinstance(backend, BackendSettings) else None
    return interruptible(_diagnose(backend, model or named))


async def _diagnose(url: NamedBackend, model: str | None) -> int:
    console = Console(highlight=False)
    failed = False
    async for check in diagnose(url, model, lambda text: print(safe_text(text), file=sys.stderr, flush=True)):
        console.print(_line(check))
        failed = failed or check.state == "failed"
    console.print("This backend cannot be used: see the failed checks." if failed else "This backend can be used.")
    return 1 if failed else 0


def _line(check: DiagnosticCheck) -> Text:
    mark, style = _MARKS[check.state]
    line = Text.assemble((f"{mark:>6}  ", style), (f"{check.name:<14}", "bold"), safe_text(check.found))
    if check.advice:
        line.append(f"\n{'':24}-> {safe_text(check.advice)}", style="cyan")
    return line
