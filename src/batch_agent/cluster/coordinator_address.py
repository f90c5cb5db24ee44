"""Coordinators of runs and flows, from their specs."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from ..core.coordinator import Coordinator
from ..core.spec import BatchSpec
from ..lazy_imports import lazy_modules

with lazy_modules(globals()):
    from .redis import redis_coordinator

FlowCoordinators = tuple[Coordinator, Sequence[Coordinator]]
"""The coordinator of the state that all stages of a flow share, and the coordinators of its stages."""


def coordinator_of(spec: BatchSpec) -> Coordinator | None:
    """Returns None if the run is not shared. Raises SpecError if the client library is missing."""
    if spec.distribution.store is None:
        return None
    return _at_store(spec.distribution.store, run_id_of(spec))


def run_id_of(spec: BatchSpec) -> str:
    """The name by which other processes find the run."""
    return spec.distribution.run_id or blake2b(str(spec.task).encode(errors="replace"), digest_size=4).hexdigest()


def stage_spec(spec: BatchSpec, flow_id: str, stage: str) -> BatchSpec:
    """The spec of a stage of a shared flow. With a store, its run is called FLOW.STAGE. `stage`: a name without a
    dot."""
    if spec.distribution.store is None:
        return spec
    return replace(spec, distribution=replace(spec.distribution, run_id=f"{flow_id}.{stage}"))


def flow_coordinators(stages: Sequence[BatchSpec]) -> FlowCoordinators | None:
    """The coordinators of a flow with these stages; None without a store. Raises SpecError like `coordinator_of`."""
    runs = [each for each in map(coordinator_of, stages) if each is not None]
    store = stages[0].distribution.store
    return None if store is None else (_at_store(store, run_id_of(stages[0]).rpartition(".")[0]), runs)


def _at_store(store: str, run_id: str) -> Coordinator:
    return redis_coordinator.RedisCoordinator(store, run_id)
