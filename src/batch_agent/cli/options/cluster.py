"""Command-line options of distributed runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from .help_groups import DISTRIBUTED

STORE = "BATCH_AGENT_STORE"
"""Environment variable for the URL of the server. Unlike an option, it keeps a password out of the process list."""


def _option(text: str, **more: Any) -> Parameter:
    return Parameter(help=text, group=DISTRIBUTED, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of a distributed run. By default a run is not distributed."""

    store: Annotated[
        str | None,
        _option(
            "Keep progress on this Redis server, such as redis://host:6379/0, so that other machines can join the run "
            "with batch-agent worker.",
            env_var=STORE,
        ),
    ] = None
    run_id: Annotated[
        str | None,
        _option("Name of the run on that server. By default, it is derived from the task.", name=("--run", "--run-id")),
    ] = None
    lease: Annotated[
        float,
        _option("Seconds without a heartbeat after which a worker is considered dead and others take over its agents."),
    ] = 15.0
    cluster: Annotated[
        str | None,
        _option("Run agents on a Ray cluster: ray for the cluster of this machine, or ray://host:10001."),
    ] = None
    workers: Annotated[int | None, _option("Worker processes on the cluster. By default, one for each node.")] = None

    def to_dict(self) -> dict[str, Any]:
        """All options by name, as `BatchAgent.run` takes them and checkpoints store them."""
        return {name: getattr(self, name) for name in self.__slots__}


def cluster_options_from_saved(options: Mapping[str, Any]) -> tuple[ClusterOptions, dict[str, Any]]:
    """Splits a saved command into the options of this group and its other options."""
    ours = {name: value for name, value in options.items() if name in ClusterOptions.__slots__}
    return ClusterOptions(**ours), {name: value for name, value in options.items() if name not in ours}
