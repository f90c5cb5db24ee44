"""batch-agent sim."""

from typing import Annotated

from cyclopts import Parameter

from ..sim import Script, SimConfig, serve


def sim(
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    config: Annotated[SimConfig | None, Parameter(name="*")] = None,
    script: Annotated[Script | None, Parameter(name="script")] = None,
) -> None:
    """Serve a simulated engine: an OpenAI-compatible server that behaves like vLLM, with scripted answers.

    Parameters
    ----------
    host
        The address to listen on.
    port
        The port to listen on; 0 chooses a free one.
    """
    serve(config or SimConfig(), script or Script(), host, port)
