"""batch-agent run-batch."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...batch_server.run_batch import RunBatchResult, run_batch
from ...core.safe_text import safe_text
from ..options.line_options import LineOptions
from ..signals import StoppedBySignal, print_lines, run_until_signal


def run_batch_file(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    options: LineOptions | None = None,
) -> int:
    """Returns 1 if lines failed. Raises SpecError and BackendError.

    Parameters
    ----------
    file
        File of requests, one per line, in the format of OpenAI's batches and vllm run-batch; - for standard input.
    out
        File of responses, one per line. Lines that it has responses for are not sent again.
    """
    options = options or LineOptions()
    work = run_batch(file, out, options.to_spec(), options.load_tools(), _notify)
    result = run_until_signal(work)
    if isinstance(result, StoppedBySignal):
        print_lines([f"{result.message} Responses so far are in {out}; the same command continues."])
        return result.status
    print_lines(_summary(result, out))
    return 1 if result.failed else 0


def _summary(result: RunBatchResult, out: Path) -> list[str]:
    earlier = f", {result.resumed:,} of them in an earlier run" if result.resumed else ""
    lines = [f"{result.completed:,} of {result.completed + result.failed:,} lines succeeded{earlier}. Output: {out}"]
    if result.failed:
        lines.append("To retry the failed lines, run the same command again.")
    return lines


def _notify(text: str) -> None:
    print(safe_text(text), file=sys.stderr, flush=True)
