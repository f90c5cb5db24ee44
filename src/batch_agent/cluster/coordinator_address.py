"""The coordinator of a run."""

from hashlib import blake2b

from ..core.coordinator import Coordinator
from ..core.spec import BatchSpec


def coordinator_of(spec: BatchSpec) -> Coordinator | None:
    """None for a run that is not shared. Raises SpecError if the client library is missing."""
    if spec.distribution.store is None:
        return None
    from .redis.redis_coordinator import RedisCoordinator  # an extra

    return RedisCoordinator(spec.distribution.store, run_id_of(spec))


def run_id_of(spec: BatchSpec) -> str:
    """The name under which other processes find the run."""
    return spec.distribution.run_id or blake2b(str(spec.task).encode(errors="replace"), digest_size=4).hexdigest()
