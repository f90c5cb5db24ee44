"""Manifest of a distributed run, stored on the server for its workers: all options except the inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..backends.address import credential_for
from ..core.errors import SpecError, StoreError
from ..core.options.backend_settings import BackendSettings, NamedBackend, backend_from_table, is_backend_url
from ..core.task_fields import Fields
from ..observe.text.text_format import plural
from .import_by_name import FILE_TOOLS, PROGRAMS, TOOLS, load_runtime, load_schema, load_tools
from .options.command_options import NOT_STORED, PARSED, PASSED_THROUGH, CommandOptions
from .options.reduce import ReduceArguments, stage_options
from .saved_command import stored_urls, without_secrets
from .trust_policy import TrustPolicy, check_backend, check_fallback, fallback_credential

_FORMAT = 1
_NO_REDUCE = ReduceArguments()
_FOR_WORKERS = frozenset({*PASSED_THROUGH, *PARSED, "encoding"}) - {"strict_prefix", "log_requests", "tokens"}
"""Excludes `strict_prefix`, which checks inputs (workers have none), and options with files of this machine. Includes
`encoding`, which file tools need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerManifest:
    """Options of a run for its workers. Tools and types are names in modules that every worker must have."""

    format: int
    folder: str
    """Working directory of the command."""
    root: str
    """Directory that file tools may read."""
    task: str
    fields: list[str] | None
    tools: list[str]
    runtime: str | None = None
    workdir: str | None = None
    schema_name: str | None
    schema: Any
    """Content of the schema file, if any."""
    lease: float
    options: dict[str, Any]
    backend_name: str | None = None
    """Name of the backend in the command's config file."""
    fallback: list[str] | None = None
    reduce: str | None = None
    """Task of the reduce, if any."""
    reduce_schema_name: str | None = None
    reduce_schema: Any = None
    reducer_model: str | None = None

    @classmethod
    def of(cls, options: CommandOptions, lease: float, reducer: ReduceArguments = _NO_REDUCE) -> "WorkerManifest":
        """The manifest of a command, without secrets. Raises SpecError for a schema that cannot be read."""
        schema_name, schema = _named_schema(options.schema)
        reduce_schema_name, reduce_schema = _named_schema(reducer.reduce_schema)
        return cls(
            format=_FORMAT,
            folder=str(Path.cwd()),
            root=str(options.root.absolute()),
            task=options.task,
            fields=options.fields,
            tools=options.tools or [],
            runtime=options.runtime,
            workdir=None if options.workdir is None else str(options.workdir.absolute()),
            schema_name=schema_name,
            schema=schema,
            lease=lease,
            options=without_secrets(_options(options)),
            backend_name=None if is_backend_url(options.backend) else options.backend,
            fallback=stored_urls(options.fallback) or None,
            reduce=reducer.reduce,
            reduce_schema_name=reduce_schema_name,
            reduce_schema=reduce_schema,
            reducer_model=reducer.reducer_model,
        )

    @classmethod
    def from_json(cls, data: bytes) -> "WorkerManifest":
        """Parses a stored manifest. Raises StoreError."""
        try:
            manifest = _MANIFEST.validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise StoreError(
                f"The manifest of the run is invalid: {where}: {first['msg']}. Use the same version of batch-agent for "
                "the run and its workers."
            ) from error
        unknown = sorted(manifest.options.keys() - _FOR_WORKERS)
        if manifest.format > _FORMAT or unknown:
            raise StoreError("The run was started with a newer version of batch-agent. Install the same version here.")
        return manifest

    def to_json(self) -> bytes:
        return _MANIFEST.dump_json(self)

    def to_kwargs(self, trusted: TrustPolicy) -> dict[str, Any]:
        """Keyword arguments of `BatchAgent.run`, except inputs, with modules from this machine. Raises SpecError for
        missing or untrusted modules."""
        for name in self.tools:
            if name in FILE_TOOLS:
                trusted.check_folder(Path(self.root), f"The run's tool {name!r} reads")
            elif name in TOOLS:
                trusted.check_built_in(name)
            else:
                trusted.check_module(name, "The run's tool")
        self._check_runtime(trusted)
        if self.schema_name is not None:
            trusted.check_module(self.schema_name, "The run's schema")
        return {
            **self.options,
            **({"backend": self._backend()} if "backend" in self.options else {}),
            "task": Fields(self.task, *self.fields) if self.fields else self.task,
            "inputs": [],
            "tools": load_tools(self.tools, Path(self.root), trusted.check_tool, encoding=self.options.get("encoding")),
            "output_schema": self._schema(),
            "fallback": self.fallback or [],
            "runtime": load_runtime(self.runtime, None if self.workdir is None else Path(self.workdir)),
            "lease": self.lease,
        }

    def reduce_options(self, trusted: TrustPolicy) -> dict[str, Any] | None:
        """Options of the reduce stage; None without one. Raises SpecError like `to_kwargs`."""
        if self.reduce is None:
            return None
        if self.reduce_schema_name is not None:
            trusted.check_module(self.reduce_schema_name, "The run's schema")
        schema = self.reduce_schema if self.reduce_schema_name is None else load_schema(self.reduce_schema_name)
        return stage_options(self.reduce, schema, self.reducer_model)

    def _check_runtime(self, trusted: TrustPolicy) -> None:
        if self.runtime in PROGRAMS:
            trusted.check_program(self.runtime)
        elif self.runtime is not None:
            trusted.check_module(self.runtime, "The run's runtime")
        if self.workdir is not None:
            trusted.check_folder(Path(self.workdir), "The run's agents get copies of")

    def _schema(self) -> Any:
        return self.schema if self.schema_name is None else load_schema(self.schema_name)

    def check_backend(self) -> None:
        """Raises SpecError if the backend is not stored or the worker must name it with --backend."""
        if "backend" not in self.options:
            raise SpecError("The backend URL contained a password, which is not stored. Add --backend URL.")
        check_backend(self._backend(), self.backend_name)

    def check_fallback(self, given: Sequence[str] | None) -> None:
        """`given`: backends that the worker names with --fallback. Raises SpecError if one is not stored or the worker
        must name it."""
        known = self.fallback or []
        if given is not None and len(given) != len(known) and known != [NOT_STORED]:
            raise SpecError(
                f"The run has {plural(len(known), 'fallback')}, and --fallback names {len(given)}: name one for each."
            )
        if given is None and known == [NOT_STORED]:
            raise SpecError("The URL of a fallback contained a password, which is not stored. Add --fallback URL ...")
        for entry in known if given is None else ():
            check_fallback(entry, known)

    def _backend(self) -> NamedBackend:
        backend = self.options["backend"]
        return backend_from_table(self.backend_name or "run", backend) if isinstance(backend, dict) else str(backend)

    def flags(self) -> list[str]:
        """Options of `batch-agent worker` that allow a worker to join this run."""
        backend = self._backend() if "backend" in self.options else None
        has_credential = backend is not None and credential_for(backend) is not None
        flags = ["--backend", self.backend_name or str(backend)] if has_credential else []
        if self.fallback and (self.fallback == [NOT_STORED] or any(map(fallback_credential, self.fallback))):
            flags += ["--fallback", *self.fallback]
        named = [*self._names(), *self._folders()]
        return [*flags, *(["--trust", *dict.fromkeys(named)] if named else [])]

    def _names(self) -> list[str]:
        names = [name for name in self.tools if name not in FILE_TOOLS]
        return [*names, *filter(None, (self.runtime, self.schema_name, self.reduce_schema_name))]

    def _folders(self) -> list[str]:
        reads_files = any(name in FILE_TOOLS for name in self.tools)
        return [*([self.root] if reads_files else []), *filter(None, (self.workdir,))]


def _named_schema(schema: str | None) -> tuple[str | None, Any]:
    """A schema as its name, or as the content of its file. Raises SpecError."""
    if schema is None or not schema.endswith(".json"):
        return schema, None
    return None, load_schema(schema)


def _options(options: CommandOptions) -> dict[str, Any]:
    plain = {**options.to_plain(), "encoding": options.encoding}
    if isinstance(plain["backend"], BackendSettings):
        plain["backend"] = plain["backend"].to_table()
    return {name: value for name, value in sorted(plain.items()) if name in _FOR_WORKERS}


_MANIFEST: TypeAdapter[WorkerManifest] = TypeAdapter(WorkerManifest)
