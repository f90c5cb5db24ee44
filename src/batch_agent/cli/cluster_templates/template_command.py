"""batch-agent template."""

from typing import Annotated

from cyclopts import Parameter

from ..stdout import write_stdout
from .renderer import ClusterJob, Platform, render_template


def template(
    platform: Platform,
    *,
    run: str,
    workers: int = 4,
    image: str | None = None,
    store: str | None = None,
    backend: str | None = None,
    max_inflight: int | None = None,
    trust: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    cpus: int = 1,
    memory_gb: int = 2,
    grace: int | None = None,
    secret: str | None = None,
    claim: str | None = None,
) -> int:
    """Prints the file for the scheduler. Raises SpecError.

    Parameters
    ----------
    platform
        The scheduler that starts the workers.
    run
        Name of the run, as --run of batch-agent run.
    workers
        Number of workers.
    image
        Container image with batch-agent and the modules of the tools. Required for kubernetes and kuberay.
    store
        Redis server of the run, if its URL has no password. By default, the variable BATCH_AGENT_STORE on the cluster.
    backend
        The model server's URL from the workers, as for worker.
    max_inflight
        Concurrent requests of all workers, as for worker.
    trust
        What agents may use on the workers, as for worker.
    cpus
        CPU cores of a worker.
    memory_gb
        Memory of a worker, in GB.
    grace
        Seconds from the signal to the kill when a worker is preempted. By default, 30.
    secret
        Kubernetes secret whose keys become environment variables. By default, batch-agent.
    claim
        With kuberay: claim of the volume that has batch.toml and gets the results. By default, batch-agent.
    """
    job = ClusterJob(
        platform=platform,
        run=run,
        workers=workers,
        image=image,
        store=store,
        backend=backend,
        max_inflight=max_inflight,
        trust=tuple(trust or ()),
        cpus=cpus,
        memory_gb=memory_gb,
        grace=grace,
        secret=secret,
        claim=claim,
    )
    write_stdout([render_template(job).encode()])
    return 0
