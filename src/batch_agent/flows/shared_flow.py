"""Distributed flows: each stage is a shared run of its own, named after the flow and the stage.

The process that runs the flow holds its graph and moves items from stage to stage; workers only need the specs of the
stages. Limits, budget and tool calls, which the stages share, are at a coordinator of the flow itself."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ..cluster.coordinator_address import stage_spec
from ..core.fast_dataclass import dataclass
from ..core.options import Distributed
from ..core.spec import BatchSpec
from .steps import FlowStep, ModelStep


@dataclass(frozen=True, slots=True)
class SharedFlow:
    """The place where the processes of a flow meet."""

    distribution: Distributed
    run_id: str
    """Name of the flow in its store."""

    @classmethod
    def of(cls, steps: Sequence[FlowStep], options: Mapping[str, Any]) -> "SharedFlow | None":
        """The shared flow; None for a flow in one process. Without a `run_id`, the name of the flow is derived from its
        tasks."""
        distribution = BatchSpec.of(task="-", inputs=(), **options).distribution
        if distribution.store is None and distribution.cluster is None:
            return None
        tasks = "\n".join(str(step.task) for step in steps if isinstance(step, ModelStep))
        derived = blake2b(tasks.encode(errors="replace"), digest_size=4).hexdigest()
        return cls(distribution, distribution.run_id or derived)

    @property
    def runs_agents(self) -> bool:
        """Whether the process of the flow also runs agents."""
        return self.distribution.cluster is None

    def stage(self, spec: BatchSpec, name: str) -> BatchSpec:
        """The spec of a stage as a shared run."""
        return stage_spec(spec, self.run_id, name)
