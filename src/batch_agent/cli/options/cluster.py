"""What is asked on the command line of a run whose work is shared with other processes and machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from ...core.errors import SpecError
from .help_groups import SHARING

STORE = "BATCH_AGENT_STORE"
"""The variable of the environment that may say where the server is: a password in it is in no list of processes."""


def _said(text: str, **more: Any) -> Parameter:
    return Parameter(help=text, group=SHARING, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """With nothing said, a run keeps to itself."""

    store: Annotated[
        str | None,
        _said(
            "Keep progress on this Redis server, as in redis://host:6379/0, where others can join the run with "
            "batch-agent worker.",
            env_var=STORE,
        ),
    ] = None
    run_id: Annotated[str | None, _said("The name of the run there; if not given, one that is made of the task.")] = (
        None
    )
    lease: Annotated[
        float,
        _said("Seconds after which a worker that is not heard of is taken to be gone, and others do its work."),
    ] = 15.0
    cluster: Annotated[
        str | None,
        _said("Run agents on a Ray cluster: ray for the one of this machine, or ray://host:10001."),
    ] = None
    workers: Annotated[
        int | None, _said("Processes of the cluster that run agents; if not given, one for each node.")
    ] = None

    def options(self) -> dict[str, Any]:
        """As `BatchAgent.run` takes them."""
        return self.said()

    def said(self) -> dict[str, Any]:
        """All of it, to be given again."""
        return {name: getattr(self, name) for name in self.__slots__}

    def check_unsaid(self) -> None:
        """Raises SpecError where work would have to be shared that cannot be."""
        if self.store is not None or self.cluster is not None:
            option = "--cluster" if self.store is None else f"--store (or {STORE})"
            raise SpecError(f"A run with --reduce works in one process for now: leave out {option}.")


def cluster_options_from_saved(options: Mapping[str, Any]) -> tuple[ClusterOptions, dict[str, Any]]:
    """What an earlier command asked, and what else it said."""
    ours = {name: value for name, value in options.items() if name in ClusterOptions.__slots__}
    return ClusterOptions(**ours), {name: value for name, value in options.items() if name not in ours}
