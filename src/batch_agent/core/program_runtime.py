"""Seams of coding-agent programs, which have an agent loop and tools of their own: the runtime that starts them, their
sessions, and the service that completes their model requests."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, Protocol

from .errors import BatchAgentError
from .fast_dataclass import dataclass
from .messages import Message, ToolSpec
from .requests import NO_USAGE, Reply, Sampling, Usage
from .results import CallRecord, Changes
from .schema import JsonSchema


class ProgramFailed(BatchAgentError):
    """The program gave no answer. `retryable`: a new session may succeed; the work of this one is discarded."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Endpoint of the model for the program of one agent. The key identifies the agent: each agent has its own."""

    url: str
    """Without a path. It is the base URL of Anthropic clients; OpenAI clients use `openai`."""
    key: str
    model: str

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"


class ModelAccess(Protocol):
    """Access of programs to the model."""

    def endpoint(self, agent: str, masks: Mapping[str, str]) -> ModelEndpoint:
        """Endpoint for one agent, until the agent leaves; repeated calls return the same one. `masks`: strings that
        only this agent's requests contain, such as the path of its workspace, and what the model reads instead: then
        the prompts of all agents share a prefix. They are restored in the model's replies."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """Context that a run gives to its programs."""

    folder: Path
    """Directory of this run alone, removed at its end."""
    model_access: ModelAccess
    context_tokens: int | None
    """Context window of the model; None if unknown."""
    notify: Callable[[str], None]
    """Shows a message to the user."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Answer of a program, with what it reports about its work. What it does not report is taken from its requests."""

    text: str
    changes: Changes | None = None
    """Changes in its workspace since the session began."""
    transcript: tuple[Message, ...] = ()
    """The whole conversation, from its first message."""
    calls: tuple[CallRecord, ...] = ()
    """Calls since this prompt, as are usage and turns."""
    usage: Usage = NO_USAGE
    turns: int = 0


class AgentSession(Protocol):
    """Session of one agent: its workspace, and a program that works there."""

    async def prompt(self, text: str) -> ProgramResult:
        """Sends a prompt to the program and waits for its answer. The next prompt continues the conversation. Raises
        ProgramFailed; cancelling it stops the work."""
        ...

    async def aclose(self) -> None:
        """Ends the program and removes the workspace. Never raises."""
        ...


class SessionFactory(Protocol):
    """Factory of the sessions of a run."""

    async def open_session(self, agent: str) -> AgentSession:
        """New session for an agent. Raises ProgramFailed."""
        ...


class Runtime(Protocol):
    """Kind of program that runs agents, such as OpenCode."""

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> Any:
        """Overrides that of the run; None: no override."""
        ...

    @property
    def model(self) -> str | None:
        """Overrides that of the run; None: no override."""
        ...

    @property
    def gateway(self) -> bool:
        """Whether its requests go through the gateway of the run; otherwise they go directly to the server."""
        ...

    @property
    def description(self) -> Mapping[str, Any]:
        """Settings that shape the answers, as JSON: a checkpoint with other settings holds other answers."""
        ...

    def check(self) -> None:
        """Raises SpecError if it cannot be used on this machine."""
        ...

    def open(self, context: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        """Starts what its sessions share, and stops it at the end. Raises SpecError."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Model request of a program, independent of its wire format."""

    messages: tuple[Message, ...]
    """User, Assistant and ToolResults messages, in turns."""
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str = ""
    """The tool that must be called; empty if the request names none."""
    single_call: bool = False
    """The reply may have at most one tool call."""
    sampling: Sampling = field(default_factory=Sampling)
    answer_schema: JsonSchema | None = None


class CompletionService(Protocol):
    """Service that completes the model requests of programs."""

    @property
    def model(self) -> str: ...

    async def complete(self, agent: str, request: CompletionRequest) -> Reply:
        """Reply of the model, with the retries of the run. Raises BackendError, whose message the program reads."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramTrace:
    """Work of a program for one turn of its agent."""

    turns: int
    transcript: tuple[Message, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    changes: Changes | None = None
