"""batch-agent plan."""

import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ...api import BatchAgent
from ...atomic_file import atomic_write
from ...core.errors import SpecError
from ...core.safe_text import safe_text
from ...forecasting.model import Forecast
from ...forecasting.text import compared_lines, forecast_lines
from ...observe.live.progress import PlainProgress
from ...observe.run_stats import RunStats
from ..checkpoint import checkpoint_of
from ..options.run import CommandOptions
from ..signals import interruptible

_FORECAST: TypeAdapter[Forecast] = TypeAdapter(Forecast)


def plan(
    asked: CommandOptions, *, canary: int = 0, out: Path = Path("results.jsonl"), checkpoint: Path | None = None
) -> int:
    """Prints the forecast, and keeps it for the run to compare.

    Parameters
    ----------
    canary
        So many agents are really run, spread over the inputs. The run will not ask them again.
    out
        As for run: the canary's answers are kept beside it.
    checkpoint
        As for run.
    """
    folder = checkpoint or checkpoint_of(out)
    options = {**asked.options(), "checkpoint_dir": folder if canary else None}
    made = interruptible(BatchAgent.plan(canary=canary, events=PlainProgress(sys.stderr), **options))
    for line in forecast_lines(made):
        print(safe_text(line))
    _keep(made, folder)
    return 0


def compare(folder: Path, tally: RunStats, seconds: float) -> list[str]:
    """Forecast against fact, for a run that was planned."""
    try:
        made = _FORECAST.validate_json(_file(folder).read_bytes())
    except (OSError, ValidationError):
        return []
    residents = tally.scheduling.max_residents if tally.scheduling else None
    usd = tally.spent or None
    return compared_lines(
        made.compared(tally.done, tally.turns, tally.usage, residents=residents, seconds=seconds, usd=usd)
    )


def _keep(made: Forecast, folder: Path) -> None:
    try:
        with atomic_write(_file(folder), is_private=True) as file:
            file.write(_FORECAST.dump_json(made, indent=2))
    except (OSError, SpecError) as error:
        print(f"The forecast cannot be kept for the run to compare: {error}", file=sys.stderr)


def _file(folder: Path) -> Path:
    return folder / "forecast.json"
