"""The commands."""

import sys
from importlib.metadata import version

from cyclopts import App, Parameter

from ..core.errors import BatchAgentError
from .demo import demo
from .doctor import doctor
from .export import export
from .inspect import inspect
from .lint import lint
from .plan import plan
from .resume import resume
from .run import run
from .sim import sim

app = App(
    name="batch-agent",
    help="Input list in, structured result list out: many tool-using agents on one inference backend.",
    version=version("batch-agent"),
    default_parameter=Parameter(negative=()),
)
app.command(run)
app.command(resume)
app.command(inspect)
app.command(export)
app.command(lint)
app.command(plan)
app.command(demo)
app.command(doctor)
app.command(sim)


def main() -> None:
    try:
        status = app()
    except BatchAgentError as error:
        print(f"batch-agent: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
