"""Resources of a run, which are open while it runs."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from ..aio import RunDeadline
from ..core.fast_dataclass import dataclass
from ..core.protocols.backend import Backend, HasEndpoints
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Store
from ..core.protocols.tool_set import ToolSet
from ..core.requests import Usage
from ..core.run_reports import PrefixReport, Scheduling, SharedResults
from ..engine.admission import AdmissionController
from ..engine.job_source import JobSource
from ..engine.long_inputs.context_window import ContextWindow
from ..engine.summarizer import Summarizer
from ..plan.compile import Plan
from ..schedule.health import Health
from ..tools.no_tools import NoTools
from .setup import RunSetup

if TYPE_CHECKING:
    from ..cluster.added_inputs import AddedInputs
    from ..cluster.cluster_session import ClusterSession
    from ..lanes.lane_turn_runner import LaneStats, SpendingOutlook
    from ..schedule.reference_model import ReadRecorder
    from ..tools import Tool
    from .control import LiveSettings, RunControl


@dataclass(frozen=True, slots=True)
class RunResources:
    """Open resources of one run. Runs of one flow share backends, admission, tools and the budget."""

    setup: RunSetup
    inputs: JobSource
    plan: Plan
    server: Backend
    """The backend as it was opened."""
    backend: Backend
    """The server, or its wrapper that counts requests against the budget."""
    tools: "Sequence[Tool]"
    chars_per_token: float
    report: Callable[[], PrefixReport]
    """Returns the prefix report; prompts are linted at the first call."""
    store: Store
    admission: AdmissionController
    health: Health
    summarizer: Summarizer
    deadline: RunDeadline
    window: ContextWindow | None = None
    """The context window of the model; None if unknown."""
    events: EventSink | None = None
    cluster: "ClusterSession | None" = None
    """Set if the run is distributed."""
    is_complete: bool = False
    """Every result is in the checkpoint: no request is sent and no tool is called."""
    tool_set: ToolSet = field(default_factory=NoTools)
    agents: int | None = None
    """Number of agents; None if the number of inputs is unknown."""
    counts: dict[str, int] = field(default_factory=dict)
    """Token counts of the server, by text digest; recorded if the store is durable."""
    reads: "ReadRecorder | None" = None
    """Records which shared tool results each agent reads; None without such tools."""
    lanes: "LaneStats | None" = None
    """Set if requests may take another lane than the standard one."""
    batch: Backend | None = None
    """Serves the requests in lane batch of a run in lane auto."""
    outlook: "SpendingOutlook | None" = None
    """Set if there are lanes and a budget in dollars."""
    live: "LiveSettings | None" = None
    """Set if the user can change the run while it is running: it has a checkpoint, here or on a server."""
    control: "RunControl | None" = None
    """Set if `live` is and the run is not distributed, so that this process applies the changes."""
    added: "AddedInputs | None" = None
    """Takes inputs that are added to a distributed run, in the process that submits it."""

    @property
    def shared_tools(self) -> frozenset[str]:
        """Tools whose results may be placed first, unless they have a placement of their own."""
        return frozenset(placeable(self.tools))

    @property
    def scheduling(self) -> Scheduling:
        """How the run has been scheduled so far."""
        server = self.server
        return replace(
            self.admission.report(),
            unavailable=server.unavailable() if isinstance(server, HasEndpoints) else (),
            shared_results=self._shared_results,
            lanes=None if self.lanes is None else self.lanes.report(),
        )

    @property
    def measured_report(self) -> Callable[[], PrefixReport]:
        """Returns the prefix report with the share that the server has found in its cache so far."""
        return cache(partial(_measured, self.report, self.admission.first_turns, self._shared_results))

    @property
    def _shared_results(self) -> SharedResults | None:
        if self.reads is None:
            return None
        residency = self.admission.residency
        stored = None if residency is None else round(residency.report().max_reference_tokens)
        return self.reads.report(self.chars_per_token, stored)


def placeable(tools: "Sequence[Tool]") -> tuple[str, ...]:
    """Names of the tools whose results may be placed first, and which have no placement of their own."""
    return tuple(tool.name for tool in tools if tool.is_shared and tool.sharing.placement is None)


def _measured(
    report: Callable[[], PrefixReport], first_turns: Usage, shared_results: SharedResults | None
) -> PrefixReport:
    """The report with the measured share, None for a server that does not report cached tokens, and with what agents
    read."""
    share = first_turns.cached / first_turns.input if first_turns.input and first_turns.cached else None
    return replace(report(), measured=share, shared_results=shared_results)
