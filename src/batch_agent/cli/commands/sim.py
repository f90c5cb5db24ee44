"""batch-agent sim."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ...core.errors import SpecError
from ...sim import Script, SimConfig, serve


def sim(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
    config: Annotated[SimConfig | None, Parameter(name="*")] = None,
    script: Annotated[Script | None, Parameter(name="script")] = None,
) -> None:
    """Serves the simulated engine until Ctrl-C. Raises SpecError.

    Parameters
    ----------
    host
        Address to listen on.
    port
        Port to listen on; 0 picks a free one.
    """
    try:
        serve(config or SimConfig(), script or Script(), host, port)
    except OSError as error:
        raise SpecError(f"Cannot listen on {host}:{port}: {error}.") from error
