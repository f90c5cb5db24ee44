"""What is asked on the command line: the options that `run`, `lint` and `plan` have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from ...core.errors import SpecError
from ...core.task_fields import Fields
from ...data import SqlQuery, check_apart, read_inputs
from ..import_by_name import importable_from, load_runtime, load_schema, load_tools
from .help_groups import LIMITS, MODEL, PROMPTS, WHAT

AS_THEY_ARE = (
    "system_prompt",
    "tool_mode",
    "backend",
    "model",
    "max_inflight",
    "max_agents",
    "max_turns",
    "max_retries",
    "max_total_tokens",
    "max_usd",
    "deadline",
    "max_tokens",
    "temperature",
    "seed",
    "timeout_per_agent",
    "timeout_per_turn",
    "timeout_per_tool",
    "oversized",
    "strict_prefix",
)
"""Options that `BatchAgent.run` takes by the same names."""


def _said(text: str, group: Group = WHAT, **more: Any) -> Parameter:
    return Parameter(help=text, group=group, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """One task over a list of inputs."""

    task: Annotated[str, _said('What each agent shall do, with {fields} of the inputs: "Summarize: {text}".')]
    inputs: Annotated[
        str,
        _said(
            "A .jsonl, .json, .csv, .tsv or .parquet file; a folder: each file is an input with {path}, {name} and "
            "{text}; or a database such as sqlite:///data.db, with --query."
        ),
    ]
    query: Annotated[
        str | None, _said('What to read from a database: "SELECT id, text FROM reviews". Each row is an input.')
    ] = None
    schema: Annotated[
        str | None, _said("What each answer must be: a JSON schema file, or a Pydantic model as module:Model.")
    ] = None
    tools: Annotated[
        list[str] | None,
        _said(
            "What agents may call: read_file, list_files, grep, http_get, web_search, or your own, as module:function.",
            consume_multiple=True,
        ),
    ] = None
    runtime: Annotated[
        str | None,
        _said(
            "Programs that do the work: opencode, or your own, as module:name. Each agent is one, with its own tools."
        ),
    ] = None
    workdir: Annotated[
        Path | None, _said("With --runtime: the folder of which each agent gets a copy of its own to work in.")
    ] = None
    config: Annotated[
        Path | None,
        _said("Read options from this .toml or .yaml file. What is said here counts more than what is said there."),
    ] = None
    backend: Annotated[
        str,
        _said(
            "local:// (embedded), vllm://host:port, sglang://, dynamo://, openai://, anthropic://, "
            "bedrock://region/model, http(s)://...",
            MODEL,
        ),
    ] = "local://"
    model: Annotated[str | None, _said("The model's name; not needed where a server has only one.", MODEL)] = None
    temperature: Annotated[float | None, _said("Sampling temperature; if not given, the server's.", MODEL)] = None
    max_tokens: Annotated[int | None, _said("The longest answer of a turn, in tokens.", MODEL)] = None
    seed: Annotated[int | None, _said("Sampling seed.", MODEL)] = None
    tool_mode: Annotated[
        Literal["auto", "native", "action"],
        _said("Tools by the server's own calls, or by one JSON action a turn; auto: what the server can do.", MODEL),
    ] = "auto"
    max_inflight: Annotated[int | None, _said("Requests in flight at once; if not given, found.", LIMITS)] = None
    max_agents: Annotated[
        int | None, _said("Agents alive at once; if not given, 10,000, or 20 with --runtime.", LIMITS)
    ] = None
    max_turns: Annotated[
        int | None, _said("Turns that an agent may take; if not given, 10, or 50 with --runtime.", LIMITS)
    ] = None
    max_retries: Annotated[int, _said("How often a failed request or an unusable answer is tried again.", LIMITS)] = 3
    max_total_tokens: Annotated[int | None, _said("Tokens that all agents may use, input and output.", LIMITS)] = None
    max_usd: Annotated[float | None, _said("Dollars that the run may cost, where the price is known.", LIMITS)] = None
    deadline: Annotated[float | None, _said("Seconds for the whole run; what is under way then ends.", LIMITS)] = None
    timeout_per_agent: Annotated[float, _said("Seconds for an agent in all.", LIMITS)] = 1800.0
    timeout_per_turn: Annotated[float, _said("Seconds for one answer of the model.", LIMITS)] = 300.0
    timeout_per_tool: Annotated[float, _said("Seconds for one tool call.", LIMITS)] = 60.0
    system_prompt: Annotated[str | None, _said("What comes before the task, the same for all agents.", PROMPTS)] = None
    fields: Annotated[
        list[str] | None,
        _said(
            "Fields of the inputs to show below the task, in the order that the prefix cache likes.",
            PROMPTS,
            consume_multiple=True,
        ),
    ] = None
    oversized: Annotated[
        Literal["refuse", "chunk"],
        _said(
            "An input that does not fit the model's window fails before it is sent, or is split and its parts' "
            "answers are merged.",
            PROMPTS,
        ),
    ] = "refuse"
    no_hoist: Annotated[bool, _said("Leave what is the same in all inputs where it stands in the task.", PROMPTS)] = (
        False
    )
    no_reorder: Annotated[bool, _said("Ask the inputs in their own order.", PROMPTS)] = False
    strict_prefix: Annotated[
        bool, _said("Refuse to run if something keeps the prompts from being shared.", PROMPTS)
    ] = False

    @property
    def home(self) -> Path:
        """The folder of the project: where its modules are, and what file tools may see where inputs are no folder."""
        return Path.cwd() if self.config is None else self.config.absolute().parent

    @property
    def root(self) -> Path:
        """What file tools may see."""
        return Path(self.inputs) if Path(self.inputs).is_dir() else self.home

    def options(self) -> dict[str, Any]:
        """As `BatchAgent.run` takes them. Raises SpecError for what cannot be read."""
        if self.config is not None:
            importable_from(self.home)
        return {
            "task": Fields(self.task, *self.fields) if self.fields else self.task,
            "inputs": self._read(),
            "tools": load_tools(self.tools or [], self.root),
            "output_schema": load_schema(self.schema) if self.schema else None,
            "runtime": load_runtime(self.runtime, self.workdir),
            "hoist": not self.no_hoist,
            "reorder": not self.no_reorder,
            **{name: getattr(self, name) for name in AS_THEY_ARE},
        }

    def check_apart(self, place: Path, option: str) -> None:
        """Raises SpecError for what a run would write in the place of its inputs, or among them."""
        if not self._is_database:
            check_apart(Path(self.inputs), place, option)

    def said(self) -> dict[str, Any]:
        """All of it, to be given again."""
        said = {name: getattr(self, name) for name in self.__slots__}
        return said if self._is_database else {**said, "inputs": Path(self.inputs)}

    @property
    def _is_database(self) -> bool:
        return "://" in self.inputs

    def _read(self) -> Any:
        if self._is_database:
            if self.query is None:
                raise SpecError('--inputs names a database: say what to read from it, with --query "SELECT ...".')
            return read_inputs(SqlQuery(self.inputs, self.query))
        if self.query is not None:
            raise SpecError("--query is about a database: name it with --inputs, as in --inputs sqlite:///data.db")
        return read_inputs(Path(self.inputs))


def from_saved(options: Mapping[str, Any]) -> tuple[CommandOptions, dict[str, Any]]:
    """What an earlier command asked, and what else it said."""
    ours = {name: value for name, value in options.items() if name in CommandOptions.__slots__}
    if "inputs" not in ours:
        raise SpecError(
            "The URL of the database held a password, which is not kept. Give the whole command again: it goes on from "
            "its checkpoint."
        )
    ours["inputs"] = str(ours["inputs"])
    return CommandOptions(**ours), {name: value for name, value in options.items() if name not in ours}
