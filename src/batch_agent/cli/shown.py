"""How a run is shown while it goes on."""

from typing import Annotated

from cyclopts import Parameter

Dashboard = Annotated[
    bool | None,
    Parameter(
        negative="--no-dashboard",
        help="Show the run as it goes, or only a plain line now and then; if not given, what the terminal can show.",
    ),
]
