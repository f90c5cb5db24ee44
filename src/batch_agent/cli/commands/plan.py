"""batch-agent plan."""

import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ...api import BatchAgent
from ...atomic_file import atomic_write
from ...core.errors import SpecError
from ...core.safe_text import safe_text
from ...forecasting.forecast import Forecast
from ...forecasting.forecast_text import compared_lines, forecast_lines
from ...observe.live.progress import PlainProgress
from ...observe.run_stats import RunStats
from ..checkpoint import checkpoint_of
from ..object_files import Location, OptionalLocation
from ..options.cluster import ClusterOptions
from ..options.command_options import CommandOptions
from ..run_address import open_folder
from ..signals import interruptible

_FORECAST: TypeAdapter[Forecast] = TypeAdapter(Forecast)


_NOT_DISTRIBUTED = ClusterOptions()


def plan(
    options: CommandOptions,
    *,
    cluster: ClusterOptions = _NOT_DISTRIBUTED,
    canary: int = 0,
    out: Location = Path("results.jsonl"),
    checkpoint: OptionalLocation = None,
) -> int:
    """Prints the forecast, and saves it for the run to compare itself with.

    Parameters
    ----------
    canary
        Run this many agents, spread over the inputs. The run reuses their answers.
    out
        Results file, as for run. The canary's answers are stored in its checkpoint.
    checkpoint
        Checkpoint directory, as for run.
    """
    with open_folder(checkpoint or checkpoint_of(out)) as opened:
        kwargs = {**options.to_kwargs(), **cluster.to_dict(), "checkpoint_dir": opened.folder if canary else None}
        forecast = interruptible(BatchAgent.plan(canary=canary, events=PlainProgress(sys.stderr), **kwargs))
        for line in forecast_lines(forecast):
            print(safe_text(line))
        _save(forecast, opened.folder)
    return 0


def compare(folder: Path, stats: RunStats, seconds: float) -> list[str]:
    """Lines that compare a planned run with its forecast; empty if there is no forecast."""
    try:
        forecast = _FORECAST.validate_json(_file(folder).read_bytes())
    except (OSError, ValidationError):
        return []
    residents = stats.scheduling.max_residents if stats.scheduling else None
    cost = stats.spent or None
    return compared_lines(
        forecast.compare_totals(stats.done, stats.turns, stats.usage, residents=residents, seconds=seconds, cost=cost)
    )


def _save(forecast: Forecast, folder: Path) -> None:
    try:
        with atomic_write(_file(folder), is_private=True) as file:
            file.write(_FORECAST.dump_json(forecast, indent=2))
    except (OSError, SpecError) as error:
        print(f"The forecast cannot be saved for comparison with the run: {error}", file=sys.stderr)


def _file(folder: Path) -> Path:
    return folder / "forecast.json"
