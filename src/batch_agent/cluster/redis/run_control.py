"""Changes to a run on a Redis server, made by a process that does not take part in it."""

from collections.abc import Sequence

from ...core.agent_config import Job
from ...core.errors import SpecError, StoreError
from ...core.events import Steered
from ...core.options.control_request import ControlRequest
from ...plan.row_keys import agent_names, row_key
from ...store.codec import decode_job
from ..added_inputs import record_inputs
from ..shared_control import change_run, is_active, read_controls
from .redis_coordinator import RedisCoordinator, no_such_run, runs_known

_RETRY_SECONDS = 10.0


async def steer_shared(url: str, run: str, request: ControlRequest) -> list[Steered]:
    """Changes a live run, with all of the request or nothing, and returns the changes. The run's processes apply them
    within a fraction of a second, when they read the message about them. Raises SpecError if the run refuses the
    request, and StoreError if the run is not running."""
    request.check()
    coordinator = RedisCoordinator(url, run, retry_seconds=_RETRY_SECONDS)
    await coordinator.open()
    try:
        await _check_live(coordinator, url, run, wants_agents=bool(request.cancel))
        added = await record_inputs(coordinator.documents, request.add) if request.add else None
        return await change_run(coordinator, request, await _find_agents(coordinator, request.cancel), added)
    finally:
        await coordinator.aclose()


async def _check_live(coordinator: RedisCoordinator, url: str, run: str, *, wants_agents: bool) -> None:
    """Raises SpecError or StoreError if the run cannot be changed."""
    controls, _ = await read_controls(coordinator.documents)
    if controls is None:
        raise await _unknown(coordinator, url, run)
    if not await is_active(coordinator.documents):
        raise StoreError(
            f"Run {run!r} at {coordinator.url} is not running: no process submits inputs to it or works for it. To "
            f"resume it: batch-agent resume {coordinator.url} --run {run}"
        )
    if wants_agents and controls.is_flow:
        raise SpecError("Agents of a run with stages or several models cannot be cancelled one by one.")


async def _unknown(coordinator: RedisCoordinator, url: str, run: str) -> StoreError:
    known = await runs_known(url)
    if (flow := run.rpartition(".")[0]) and flow in known:
        return StoreError(f"{run!r} is one stage of the run {flow!r}. All stages are changed together: --run {flow}")
    if run in known:
        return StoreError(f"Run {run!r} at {coordinator.url} has not started.")
    return no_such_run(run, coordinator.url, known)


async def _find_agents(coordinator: RedisCoordinator, wanted: Sequence[str]) -> dict[str, Steered]:
    """Finds the unfinished agents that a user names by key, index or beginning of a key. Raises SpecError if one is not
    found."""
    if not wanted:
        return {}
    jobs: dict[str, tuple[Job, bool]] = {}  # a scan may list a job twice
    async for data, is_leased in coordinator.stored.jobs():
        job = decode_job(data)
        jobs[job.key] = job, is_leased
    found = {}
    for name in wanted:
        job = _find([job for job, _ in jobs.values()], name)
        state = "running" if jobs[job.key][1] else "not started"
        found[job.key] = Steered(f"agent {row_key(job.key)}", state, "cancelled")
    return found


def _find(jobs: Sequence[Job], name: str) -> Job:
    if exact := [job for job in jobs if name in agent_names(job)]:
        return exact[0]
    found = [job for job in jobs if job.key.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(f"{len(found):,} agents begin with {name!r}: give the index or the whole key of one.")
    raise SpecError(
        f"There is no agent {name!r} that waits or runs: it has ended, was not submitted yet, or does not exist."
    )
