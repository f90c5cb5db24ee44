"""What a run asks, kept at its server for those who join it: all but the inputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..backends.address import credential_for
from ..core.errors import SpecError, StoreError
from ..core.task_fields import Fields
from .import_by_name import FILE_TOOLS, OPENCODE, TOOLS, load_runtime, load_schema, load_tools
from .options.run import AS_THEY_ARE, CommandOptions
from .saved_command import without_secrets
from .trust_policy import TrustPolicy, check_backend

_FORMAT = 1
_FOR_WORKERS = frozenset(AS_THEY_ARE) - {"strict_prefix"}
"""That looks at the inputs, which workers do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerManifest:
    """Names of tools and types are those of modules that every worker must have."""

    format: int
    folder: str
    """Where the command was given."""
    root: str
    """What file tools may see."""
    task: str
    fields: list[str] | None
    tools: list[str]
    runtime: str | None = None
    workdir: str | None = None
    schema_name: str | None
    schema: Any
    """The schema itself, where it was in a file."""
    lease: float
    options: dict[str, Any]

    @classmethod
    def of(cls, asked: CommandOptions, lease: float) -> "WorkerManifest":
        """Without secrets. Raises SpecError for a schema that cannot be read."""
        is_file = asked.schema is not None and asked.schema.endswith(".json")
        return cls(
            format=_FORMAT,
            folder=str(Path.cwd()),
            root=str(asked.root.absolute()),
            task=asked.task,
            fields=asked.fields,
            tools=asked.tools or [],
            runtime=asked.runtime,
            workdir=None if asked.workdir is None else str(asked.workdir.absolute()),
            schema_name=None if is_file else asked.schema,
            schema=load_schema(asked.schema) if is_file and asked.schema is not None else None,
            lease=lease,
            options=without_secrets({name: getattr(asked, name) for name in sorted(_FOR_WORKERS)}),
        )

    @classmethod
    def read(cls, data: bytes) -> "WorkerManifest":
        """Raises StoreError."""
        try:
            command = _COMMAND.validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise StoreError(
                f"What the run asks cannot be read: {where}: {first['msg']}. Use the same version of batch-agent for "
                "the run and its workers."
            ) from error
        unknown = sorted(command.options.keys() - _FOR_WORKERS)
        if command.format > _FORMAT or unknown:
            raise StoreError("The run was started with a newer version of batch-agent. Install the same version here.")
        return command

    def written(self) -> bytes:
        return _COMMAND.dump_json(self)

    def asked_here(self, trusted: TrustPolicy) -> dict[str, Any]:
        """As `BatchAgent.run` takes it, without inputs, with what this machine has. Raises SpecError for what it does
        not have, and for what is not trusted."""
        for name in self.tools:
            if name in FILE_TOOLS:
                trusted.check_folder(Path(self.root), f"The run's tool {name!r} works on")
            elif name in TOOLS:
                trusted.check_built_in(name)
            else:
                trusted.check_module(name, "The run's tool")
        self._check_runtime(trusted)
        if self.schema_name is not None:
            trusted.check_module(self.schema_name, "The run's schema")
        return {
            **self.options,
            "task": Fields(self.task, *self.fields) if self.fields else self.task,
            "inputs": [],
            "tools": load_tools(self.tools, Path(self.root), trusted.check_tool),
            "output_schema": self._schema(),
            "runtime": load_runtime(self.runtime, None if self.workdir is None else Path(self.workdir)),
            "lease": self.lease,
        }

    def _check_runtime(self, trusted: TrustPolicy) -> None:
        if self.runtime == OPENCODE:
            trusted.check_program(OPENCODE)
        elif self.runtime is not None:
            trusted.check_module(self.runtime, "The run's runtime")
        if self.workdir is not None:
            trusted.check_folder(Path(self.workdir), "The run's agents work on copies of")

    def _schema(self) -> Any:
        return self.schema if self.schema_name is None else load_schema(self.schema_name)

    def check_backend(self) -> None:
        """Raises SpecError where it is not known, or must be named by the worker's owner."""
        if "backend" not in self.options:
            raise SpecError("The backend's URL held a password, which is not kept. Say it again: --backend URL.")
        check_backend(self.options["backend"])

    def flags(self) -> list[str]:
        """What the owner of a worker has to say to let it work on this run: options of `batch-agent worker`."""
        backend = self.options.get("backend")
        words = [] if backend is None or credential_for(backend) is None else ["--backend", backend]
        named = [*self._names(), *self._folders()]
        return [*words, *(["--trust", *dict.fromkeys(named)] if named else [])]

    def _names(self) -> list[str]:
        names = [name for name in self.tools if name not in FILE_TOOLS]
        return [*names, *filter(None, (self.runtime, self.schema_name))]

    def _folders(self) -> list[str]:
        sees_files = any(name in FILE_TOOLS for name in self.tools)
        return [*([self.root] if sees_files else []), *filter(None, (self.workdir,))]


_COMMAND: TypeAdapter[WorkerManifest] = TypeAdapter(WorkerManifest)
