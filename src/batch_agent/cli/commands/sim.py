"""batch-agent sim."""

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ...core.errors import SpecError
from ...sim import Script, SimConfig, serve
from ...sim.listener import print_port


def sim(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
    config: Annotated[SimConfig | None, Parameter(name="*", negative=None, negative_bool="no-")] = None,
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

    def announce(port: int) -> None:
        if not sys.stdout.isatty():  # for a program that reads the port
            print_port(port)
        print(
            f"The simulated server listens on http://{host}:{port}/v1; Ctrl-C stops it.\n"
            f"Use it as --backend vllm://{host}:{port} (or sglang://, dynamo://, openai://).",
            file=sys.stderr,
        )

    try:
        serve(config or SimConfig(), script or Script(), host, port, announce=announce)
    except OSError as error:
        raise SpecError(f"Cannot listen on {host}:{port}: {error}.") from error
