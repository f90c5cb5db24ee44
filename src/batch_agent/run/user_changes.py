"""Changes that the user makes to a run while it is running, and those of earlier runs with the same checkpoint."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..aio import RunDeadline
from ..core.options import SpendingLimits
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import KeepsControls, Store
from ..engine.admission import AdmissionController
from ..engine.job_source import JobSource
from ..lazy_imports import lazy_modules
from .resources import RunResources
from .setup import RunSetup

with lazy_modules(globals()):
    from ..cluster import added_inputs, shared_control
    from ..core.options import control_request
    from . import control, control_socket

if TYPE_CHECKING:
    from ..cluster.added_inputs import AddedInputs
    from ..cluster.cluster_session import ClusterSession
    from ..cluster.shared_control import SharedControls
    from ..core.options.control_request import KeptControls
    from ..engine.budget_pool import BudgetPool
    from .control import LiveSettings


class UserChanges:
    """The user's changes to a run or a flow, in its store or at its coordinator."""

    def __init__(self, setup: RunSetup, stack: AsyncExitStack, deadline: RunDeadline) -> None:
        """`setup`: that of the run, or of the first one of the flow. `stack`: closes what applies changes."""
        self._setup = setup
        self._stack = stack
        self._deadline = deadline
        self._given = setup.spec.spending
        """The limits that were given for this run."""
        self._kept: KeptControls | None = None
        """Changes from earlier runs; None if this run cannot be changed."""
        self._shared: SharedControls | None = None
        """Changes of a distributed run; None if this run is not distributed or cannot be changed."""
        self.added: Sequence[Any] = ()
        """Inputs that were added during earlier runs."""
        self._additions: AddedInputs | None = None
        """Receives inputs that are added to a distributed run."""

    async def limits(self, store: Store, spending: SpendingLimits) -> SpendingLimits:
        """The limits of the run, with the changes from earlier runs. Other changes are kept for `follow`."""
        if not isinstance(store, KeepsControls):
            return spending
        spending = self._given = replace(spending, deadline=self._deadline.seconds)
        kept = self._kept = control_request.KeptControls.of(await store.controls(), spending)
        self.added = kept.added
        if kept.deadline != spending.deadline:
            self._deadline.set(kept.deadline)
        return replace(spending, max_usd=kept.max_usd, deadline=kept.deadline)

    async def shared_limits(
        self, cluster: "ClusterSession", spending: SpendingLimits, inputs: JobSource, *, submits: bool
    ) -> SpendingLimits:
        """The same as `limits` for a distributed run, whose changes are on a server."""
        coordinator, setup = cluster.coordinator, self._setup
        if not coordinator.is_durable:
            return spending
        spending = self._given = replace(spending, deadline=self._deadline.seconds)
        is_flow = cluster.stages != [cluster]
        if submits:
            given = {
                "max_inflight": setup.spec.limits.max_inflight,
                "max_usd": spending.max_usd,
                "deadline": spending.deadline,
                "samples": setup.spec.evaluation.samples,
                "inputs": inputs.total,
            }
            await shared_control.begin_controls(coordinator.documents, given, is_flow=is_flow)
        self._shared, now = await shared_control.read_controls(coordinator.documents)
        if self._shared is None:
            return spending
        if submits and not is_flow:
            self._additions = added_inputs.AddedInputs(coordinator.documents, cluster.member.name)
            await self._additions.update(self._shared)
            self.added = self._additions.known
        kept = self._shared.kept(spending)
        if kept.deadline is not None and kept.deadline != spending.deadline:
            self._deadline.set(kept.deadline, self._shared.time_left(kept.deadline, now))
        return replace(spending, max_usd=kept.max_usd, deadline=kept.deadline)

    async def follow(
        self,
        runs: list[RunResources],
        cluster: "ClusterSession | None",
        controllers: Sequence[AdmissionController],
        pool: "BudgetPool | None",
        events: EventSink | None,
    ) -> list[RunResources]:
        """Connects the runs to the user's changes from now on. `pool`: of their budget. Raises StoreError."""
        if self._kept is not None:
            live = control.LiveSettings(self._deadline, pool, controllers, self._kept.cancelled)
            return await self._follow_stored(runs, self._kept, live, events)
        if cluster is not None and cluster.coordinator.is_durable:
            live = control.LiveSettings(self._deadline, pool, controllers)
            return await self._follow_shared(runs, cluster, live, events)
        return runs

    async def _follow_shared(
        self,
        runs: list[RunResources],
        cluster: "ClusterSession",
        live: "LiveSettings",
        events: EventSink | None,
    ) -> list[RunResources]:
        follower = shared_control.ControlFollower(self._given, live.set, live.cancel, events, self._shared)
        update_inputs = None if self._additions is None else self._additions.update
        documents = cluster.coordinator.documents
        following = shared_control.follow_controls(documents, cluster.member, follower, update_inputs)
        await self._stack.enter_async_context(following)
        if self._shared is not None and self._shared.value("pause"):
            self._setup.notify("The run is paused. To go on: batch-agent ctl URL --run NAME --resume")
        return [replace(run, live=live, added=self._additions) for run in runs]

    async def _follow_stored(
        self, runs: list[RunResources], kept: "KeptControls", live: "LiveSettings", events: EventSink | None
    ) -> list[RunResources]:
        setup, store = self._setup, runs[0].store
        folder, is_flow = setup.spec.checkpoint_dir, bool(setup.stage)
        if folder is None or not isinstance(store, KeepsControls):
            return runs
        folder = folder.parent if is_flow else folder
        handle = control.RunControl(store, self._given, kept, live, events, is_flow=is_flow)
        if not all(run.is_complete for run in runs):
            await self._stack.enter_async_context(control_socket.serve_control(folder, handle))
        return [replace(run, live=live, control=handle) for run in runs]
