"""Programs that do the work of agents, such as coding agents: they bring a loop and tools of their own, and ask our
backend. The seams between a run, the programs, and what answers their requests."""

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
    """A program came to no answer. `retryable`: started anew, it may; nothing that it did is kept then."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where the program of one agent finds the model. The key says whose requests they are: it is for one agent."""

    url: str
    """Without a path: OpenAI's base URL is `openai`, Anthropic's is this one."""
    key: str
    model: str

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"


class ModelAccess(Protocol):
    """How programs reach the model."""

    def address(self, agent: str, hides: Mapping[str, str]) -> ModelEndpoint:
        """For one agent, until it leaves; asked twice, the same. `hides`: what only this agent's requests have in them,
        such as the path of its folder, and what the model reads in its place: the prompts of all agents begin alike
        then, and the server computes that once. In what the model says it is put back."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """What a run gives to its programs."""

    folder: Path
    """Of this run alone, gone when it is over."""
    door: ModelAccess
    window: int | None
    """Tokens of the model's context window, where somebody knows."""
    notify: Callable[[str], None]
    """Tells whoever waits."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program said, and what it tells of how it came to that. Of what it does not tell, its requests do."""

    text: str
    changes: Changes | None = None
    """What is different in its folder from what it was given, by now."""
    transcript: tuple[Message, ...] = ()
    """Whole, from its first message."""
    calls: tuple[CallRecord, ...] = ()
    """Since it was asked, as are the others."""
    usage: Usage = NO_USAGE
    turns: int = 0


class AgentSession(Protocol):
    """The place of one agent: its folder, and a program that works there."""

    async def ask(self, text: str) -> ProgramResult:
        """Tells the program, and waits until it is done. Asked again, it goes on from there. Raises ProgramFailed; when
        it is cancelled, nothing of this work goes on."""
        ...

    async def aclose(self) -> None:
        """Its program ends, and its folder goes. Never raises."""
        ...


class SessionFactory(Protocol):
    """The programs of a run."""

    async def seat(self, agent: str) -> AgentSession:
        """A place for an agent, as many at once as the house has. Raises ProgramFailed."""
        ...


class Runtime(Protocol):
    """A kind of program that does the work of agents."""

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> Any:
        """In place of the run's own; None: that one."""
        ...

    @property
    def model(self) -> str | None:
        """In place of the run's own; None: that one."""
        ...

    @property
    def gateway(self) -> bool:
        """Whether its requests come through us; else they go straight to the server."""
        ...

    @property
    def description(self) -> Mapping[str, Any]:
        """What of it shapes an answer, as JSON has it: a checkpoint of another one holds other answers."""
        ...

    def check(self) -> None:
        """Raises SpecError if it cannot be used here."""
        ...

    def open(self, house: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        """Whatever its agents share is started. Raises SpecError; at the end nothing of it runs on."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request of a program, in our words."""

    messages: tuple[Message, ...]
    """User, Assistant and ToolResults, in turns."""
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    """Whether it wants tools to be called."""
    named: str = ""
    """The tool that it wants to be called, where it names one."""
    one_call: bool = False
    """It takes at most one call in a reply."""
    sampling: Sampling = field(default_factory=Sampling)
    answer_schema: JsonSchema | None = None


class CompletionService(Protocol):
    """Who answers the requests of programs."""

    @property
    def model(self) -> str: ...

    async def answer(self, agent: str, asked: CompletionRequest) -> Reply:
        """Retried as ever. Raises BackendError, whose message is for the program."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramTrace:
    """What a program did for one turn of its agent."""

    turns: int
    transcript: tuple[Message, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    changes: Changes | None = None
