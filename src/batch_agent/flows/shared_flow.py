"""Distributed flows: each stage is a shared run of its own, named after the flow and the stage.

The process that runs the flow holds its graph, and moves items from stage to stage; workers need the specs of the
stages. What the stages share (limits, budget, tool calls) is at a coordinator of the flow itself.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from ..cluster.coordinator_address import FlowCoordinators, flow_coordinators, stage_spec
from ..core.fast_dataclass import dataclass
from ..core.options import Distributed
from ..core.spec import BatchSpec
from ..run.setup import RunSetup
from .steps import FlowStep, ModelStep


@dataclass(frozen=True, slots=True)
class SharedFlow:
    """Where the processes of a flow meet."""

    distribution: Distributed
    run_id: str
    """Name of the flow at its store."""

    @classmethod
    def of(cls, steps: Sequence[FlowStep], options: Mapping[str, Any]) -> "SharedFlow | None":
        """None for a flow in one process. Without a `run_id`, the name of a flow is made from its tasks."""
        distribution = BatchSpec.of(task="-", inputs=(), **options).distribution
        if distribution.store is None and distribution.cluster is None:
            return None
        tasks = "\n".join(str(step.task) for step in steps if isinstance(step, ModelStep))
        derived = blake2b(tasks.encode(errors="replace"), digest_size=4).hexdigest()
        return cls(distribution, distribution.run_id or derived)

    @property
    def runs_agents(self) -> bool:
        """Whether agents run in the process of the flow too."""
        return self.distribution.cluster is None

    def stage(self, spec: BatchSpec, name: str) -> BatchSpec:
        """The spec of a stage as a shared run."""
        return stage_spec(spec, self.run_id, name)

    @asynccontextmanager
    async def open(self, setups: Sequence[RunSetup]) -> AsyncIterator[FlowCoordinators]:
        """The coordinators of the flow and of its stages. With `cluster=`, its workers run while the block runs. Raises
        SpecError, and what the last worker raised when all have failed."""
        at_store = flow_coordinators([setup.spec for setup in setups])
        if self.distribution.cluster is None:
            assert at_store is not None
            yield at_store
            return
        from ..ray import deployed_stages

        async with deployed_stages(setups, at_store) as coordinators:
            yield coordinators
