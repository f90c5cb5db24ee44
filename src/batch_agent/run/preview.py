"""Preview of a run: its first requests as they would be sent, without sending anything."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from typing import Any

from ..agent.conversation import Conversation, Generate
from ..core.agent_config import Job
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps
from ..core.options.backend_settings import NAMED
from ..core.protocols.backend import Backend
from ..core.validation import at_least
from ..engine.job_source import InputSource, JobSource
from ..lazy_imports import lazy_modules
from ..observe.observed_backend import encoded_request
from ..plan.compile import Plan
from ..plan.row_keys import row_key
from .resource_opener import offline_plan, open_preview
from .setup import RunSetup, input_order

with lazy_modules(globals()):
    from ..backends import offline_backend

_OWN_BACKEND = "The backend is an object, which sends requests in a way of its own. Shown is the data that it receives."
_CHUNKS = "An input that exceeds the context window is split when the run starts (oversized='chunk')."


@dataclass(frozen=True, slots=True)
class PreviewedRequest:
    """First request of one agent as it would be sent, with secrets masked."""

    index: int
    """Index of the input."""
    key: str
    """Key of the agent, as in `AgentResult.key`."""
    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """The body as JSON data."""
    problem: str | None = None
    """Why nothing is sent for this input, such as a missing field."""

    def to_dict(self) -> dict[str, Any]:
        """JSON data of the request."""
        return {
            "index": self.index,
            "key": self.key,
            "method": self.method,
            "url": self.url,
            "headers": dict(self.headers),
            "body": self.body,
            "problem": self.problem,
        }

    def __str__(self) -> str:
        if self.problem is not None:
            return f"Input {self.index} is not sent: {self.problem}"
        head = [f"{self.method} {self.url}", *(f"{name}: {value}" for name, value in self.headers.items()), ""]
        return "\n".join([f"Input {self.index}", *(head if self.url else []), _readable(self.body)])


@dataclass(frozen=True, slots=True)
class Preview:
    """First requests of a run, in the order in which they would be sent. `print(preview)` is for reading."""

    backend: str
    """Kind of the server."""
    model: str
    requests: tuple[PreviewedRequest, ...]
    total: int | None
    """Number of inputs; None if it is unknown."""
    notes: tuple[str, ...] = ()
    """What only the server can tell, so that the real requests may differ."""

    def to_dict(self) -> dict[str, Any]:
        """JSON data of the preview."""
        return {
            "backend": self.backend,
            "model": self.model,
            "total": self.total,
            "notes": list(self.notes),
            "requests": [each.to_dict() for each in self.requests],
        }

    def __str__(self) -> str:
        count = len(self.requests)
        total = "" if self.total in (None, count) else f" of {self.total:,}"
        agents = "agent" if (self.total or count) == 1 else "agents"
        first = f"First request of {count}{total} {agents}, to {self.backend}; not sent."
        return "\n\n".join(["\n".join([first, *(f"Note: {note}" for note in self.notes)]), *map(str, self.requests)])


async def preview_requests(setup: RunSetup, count: int, *, exact: bool) -> Preview:
    """`count`: the number of inputs. `exact`: connects to the backend. Raises SpecError; with `exact` BackendError."""
    at_least("count", count, 1)
    if setup.spec.runtime is not None:
        raise SpecError("preview shows requests to a model. With runtime=, a program makes them while it runs.")
    async with _opened(setup, exact=exact) as opened:
        backend, plan = opened.backend, opened.plan
        source = InputSource(opened.inputs, plan.job, input_order(plan.layout, opened.inputs), blocks=plan.reads_images)
        requests: list[PreviewedRequest] = []
        while len(requests) < count and (job := await source.take()) is not None:
            requests.append(_previewed(backend, plan, job))
        notes = (*opened.notes, *((_CHUNKS,) if setup.spec.context.oversized == "chunk" else ()))
        return Preview(backend.traits.name, plan.config.model, tuple(requests), opened.inputs.total, notes)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is opened to make the requests."""

    backend: Backend
    inputs: JobSource
    plan: Plan
    notes: Sequence[str] = ()


@asynccontextmanager
async def _opened(setup: RunSetup, *, exact: bool) -> AsyncIterator[_Opened]:
    spec = setup.spec
    is_object = not isinstance(spec.backend, NAMED)
    if exact:
        async with open_preview(setup) as run:
            yield _Opened(run.server, run.inputs, run.plan, (_OWN_BACKEND,) if is_object else ())
        return
    async with AsyncExitStack() as stack:
        backend: Backend
        notes: Sequence[str] = (_OWN_BACKEND,)
        if not isinstance(spec.backend, NAMED):
            backend = spec.backend
        else:
            offline = await offline_backend.open_offline(spec.backend, spec.model, uses_tools=setup.uses_native_tools)
            backend, notes = offline.backend, offline.unknowns
            stack.push_async_callback(backend.aclose)
        inputs, plan, _ = await offline_plan(setup, stack, backend.traits)
        yield _Opened(backend, inputs, plan, notes)


def _previewed(backend: Backend, plan: Plan, job: Job) -> PreviewedRequest:
    step = Conversation(plan.config, job).next()
    if not isinstance(step, Generate):
        return PreviewedRequest(job.index, row_key(job.key), problem=str(job.problem))
    sent = encoded_request(backend, step.request)
    return PreviewedRequest(job.index, row_key(job.key), sent.method, sent.url, sent.headers, sent.body)


def _readable(value: Any) -> str:
    """Indented JSON in which the lines of a text are lines. It is not JSON where a text has several."""
    return "".join(_pieces(value, ""))


def _pieces(value: Any, indent: str) -> Iterator[str]:
    deeper = indent + "  "
    comma, line = ",\n" + deeper, "\n" + deeper
    match value:
        case {} if value:
            yield "{" + line
            for at, (name, each) in enumerate(value.items()):
                yield (comma if at else "") + dumps(name).decode() + ": "
                yield from _pieces(each, deeper)
            yield "\n" + indent + "}"
        case [_, *_]:
            yield "[" + line
            for at, each in enumerate(value):
                yield comma if at else ""
                yield from _pieces(each, deeper)
            yield "\n" + indent + "]"
        case str() if "\n" in value:
            yield '"' + line.join([dumps(each).decode()[1:-1] for each in value.split("\n")]) + '"'
        case _:
            yield dumps(value).decode()
