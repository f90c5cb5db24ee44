"""What is asked on the command line: the options that `run`, `lint` and `plan` have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..core.fields import Fields
from .data import InputFile
from .load import load_schema, load_tools


def _said(text: str, **more: Any) -> Parameter:
    return Parameter(help=text, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One task over a list of inputs."""

    task: Annotated[str, _said('What each agent shall do, with {fields} of the inputs: "Summarize: {text}".')]
    inputs: Annotated[
        Path, _said("A .jsonl, .json or .csv file, or a folder: each file is an input with {path}, {name} and {text}.")
    ]
    fields: Annotated[
        list[str] | None,
        _said(
            "Fields of the inputs to show below the task, in the order that the prefix cache likes.",
            consume_multiple=True,
        ),
    ] = None
    system_prompt: Annotated[str | None, _said("What comes before the task, the same for all agents.")] = None
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
    tool_mode: Annotated[
        Literal["auto", "native", "action"],
        _said("The server's native tool calls, or one JSON action per turn; auto: what the server can do."),
    ] = "auto"
    backend: Annotated[
        str,
        _said(
            "local:// (embedded), vllm://host:port, sglang://, dynamo://, openai://, anthropic://, "
            "bedrock://region/model, http(s)://..."
        ),
    ] = "local://"
    model: Annotated[str | None, _said("The model's name; not needed where a server has only one.")] = None
    max_inflight: Annotated[int | None, _said("Requests in flight at once; found by itself if not given.")] = None
    max_turns: Annotated[int, _said("Turns that an agent may take.")] = 10
    max_retries: Annotated[int, _said("How often a failed request or an unusable answer is tried again.")] = 3
    max_tokens: Annotated[int | None, _said("The longest answer of a turn.")] = None
    temperature: Annotated[float | None, _said("Sampling temperature; the server's default if not given.")] = None
    seed: Annotated[int | None, _said("Sampling seed.")] = None
    timeout_per_agent: Annotated[float, _said("Seconds for an agent in all.")] = 1800.0
    timeout_per_turn: Annotated[float, _said("Seconds for one answer of the model.")] = 300.0
    timeout_per_tool: Annotated[float, _said("Seconds for one tool call.")] = 60.0
    oversized: Annotated[
        Literal["refuse", "chunk"],
        _said(
            "An input that does not fit the model's window fails before it is sent, or is split and its parts' "
            "answers are merged."
        ),
    ] = "refuse"
    no_hoist: Annotated[bool, _said("Leave what is the same in all inputs where it stands in the task.")] = False
    no_reorder: Annotated[bool, _said("Ask the inputs in their own order.")] = False
    strict_prefix: Annotated[bool, _said("Refuse to run if something keeps the prompts from being shared.")] = False

    def options(self) -> dict[str, Any]:
        """As `BatchAgent.run` takes them. Raises SpecError for what cannot be read."""
        as_they_are = (
            "system_prompt",
            "tool_mode",
            "backend",
            "model",
            "max_inflight",
            "max_turns",
            "max_retries",
            "max_tokens",
            "temperature",
            "seed",
            "timeout_per_agent",
            "timeout_per_turn",
            "timeout_per_tool",
            "oversized",
            "strict_prefix",
        )
        return {
            "task": Fields(self.task, *self.fields) if self.fields else self.task,
            "inputs": InputFile(self.inputs).rows(),
            "tools": load_tools(self.tools or [], self.inputs if self.inputs.is_dir() else Path.cwd()),
            "output_schema": load_schema(self.schema) if self.schema else None,
            "hoist": not self.no_hoist,
            "reorder": not self.no_reorder,
            **{name: getattr(self, name) for name in as_they_are},
        }

    def said(self) -> dict[str, Any]:
        """All of it, to be given again."""
        return {name: getattr(self, name) for name in self.__slots__}


def asked_again(options: Mapping[str, Any]) -> tuple[Asked, dict[str, Any]]:
    """What an earlier command asked, and what else it said."""
    ours = {name: value for name, value in options.items() if name in Asked.__slots__}
    return Asked(**ours), {name: value for name, value in options.items() if name not in ours}
