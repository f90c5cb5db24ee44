"""Backends of the runs of one flow: each server is connected to once, and its requests are observed."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.connect import TrialRequest, connect
from ..backends.probe import probe_images
from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import NAMED, NamedBackends
from ..core.protocols.backend import Backend, Traits
from ..core.requests import NO_USAGE, Exchange, RequestObserver, Usage
from ..engine.job_source import JobSource
from ..lazy_imports import lazy_modules
from ..plan.image_rules import no_images
from ..plan.layout import Layout
from .setup import RunSetup

with lazy_modules(globals()):
    from ..observe import observed_backend, request_log

if TYPE_CHECKING:
    from ..tools import Tool

_log = logging.getLogger("batch_agent")


@dataclass(slots=True)
class ServerBackends:
    """Opens each backend once; the stack closes them."""

    setups: Sequence[RunSetup]
    stack: AsyncExitStack
    trace_requests: RequestObserver | None = None
    """Sinks that receive the requests."""
    trial: TrialRequest = field(default_factory=TrialRequest)
    """Sends a trial request, which shows whether a server supports tools."""
    trial_usage: Usage = NO_USAGE
    """Usage of the trial requests."""
    _backends: dict[tuple[NamedBackends, str | None, Path | None], Backend] = field(default_factory=dict)
    _request_logs: dict[Path | None, RequestObserver] = field(default_factory=dict)

    async def connect(self, setup: RunSetup) -> Backend:
        """The backend of a run, open. Raises SpecError and BackendError."""
        spec = setup.spec
        if not isinstance(spec.backend, NAMED):
            return spec.backend  # the caller closes it: a backend may serve several runs
        key = spec.backend, spec.model, spec.log_requests
        backend = self._backends.get(key)
        if backend is None:
            uses_tools = any(each.uses_native_tools for each in self.setups if each.spec.backend == spec.backend)
            backend = await connect(
                spec.backend,
                spec.model,
                uses_tools=uses_tools,
                notify=setup.notify,
                trial=replace(self.trial, on_usage=self._count),
                observe=self._observer(setup),
            )
            self.stack.push_async_callback(backend.aclose)
            self._backends[key] = backend
        for name in backend.traits.unsupported_sampling:
            if getattr(spec.sampling, name) is not None:
                setup.notify(f"{backend.traits.name} does not support {name}=: it is not sent.")
        return backend

    async def image_traits(
        self, setup: RunSetup, server: Backend, inputs: JobSource, layout: Layout, tools: "Sequence[Tool]"
    ) -> Traits:
        """The traits of a server, with whether it takes images if requests may have some: by a request for one token if
        only that shows it. Raises SpecError, before anything else is sent, if it takes none and the task has some."""
        traits = server.traits
        if not setup.shows_images(inputs, layout, tools):
            return traits
        if setup.spec.runtime is not None:
            raise SpecError("The task has images, which the programs of a runtime do not get: give them files instead.")
        is_ours = isinstance(setup.spec.backend, NAMED)
        said = ""
        if traits.images is None and is_ours:
            backend = server if self.trial.with_budget is None else self.trial.with_budget(server)
            try:
                refusal = await probe_images(backend, traits.model, on_usage=self._count, notify=setup.notify)
            except BackendError as error:
                if error.kind is not ErrorKind.BUDGET:
                    raise
                return traits
            traits = replace(traits, images=refusal is None)
            said = "" if refusal is None else f" (it says: {refusal})"
        if traits.images is False and setup.first_has_images(inputs, layout):
            raise SpecError(f"{no_images(traits)}.{said}")
        return traits

    def observed(self, server: Backend, setup: RunSetup) -> Backend:
        """The backend of a run that logs its requests: one of the caller is observed here, as only those that
        `connect` opens have an observer. Requests of a stage have its name."""
        observe = self._observer(setup)
        if observe is None:
            return server
        is_opened_here = isinstance(setup.spec.backend, NAMED)
        backend = server if is_opened_here else observed_backend.ObservedBackend(server, observe)
        return observed_backend.StageBackend(backend, setup.stage) if setup.stage else backend

    def _observer(self, setup: RunSetup) -> RequestObserver | None:
        """Observer of the requests of a run; None if they are neither logged nor traced."""
        path, trace = setup.spec.log_requests, self.trace_requests
        if path is None and not _log.isEnabledFor(logging.DEBUG):
            return trace
        log = self._request_log(path, setup.notify)
        return log if trace is None else _Both(log, trace)

    def _request_log(self, path: Path | None, notify: Callable[[str], None]) -> RequestObserver:
        """Log of requests in a file, or of the program. Runs with the same file share it."""
        if path not in self._request_logs:
            self._request_logs[path] = self.stack.enter_context(request_log.RequestLog(path, notify))
        return self._request_logs[path]

    def _count(self, usage: Usage) -> None:
        self.trial_usage += usage


@dataclass(frozen=True, slots=True)
class _Both:
    """Two observers as one."""

    log: RequestObserver
    trace: RequestObserver

    def __call__(self, exchange: Exchange) -> None:
        self.log(exchange)
        self.trace(exchange)
