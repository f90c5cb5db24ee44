"""Command-line options shared by `run-batch` and `serve-batches`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...core.spec import BatchSpec
from ...tools import Tool
from ..config_file import backend_of
from ..import_by_name import FILE_TOOLS, load_tools
from .help_groups import LIMITS, MODEL


def _option(text: str, **more: Any) -> Parameter:
    return Parameter(help=text, group=LIMITS, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """Options for answering the lines of batches."""

    backend: Annotated[
        str,
        Parameter(
            help="Model server: local:// (embedded), vllm://host:port, sglang://, dynamo://, openai://, anthropic://, "
            "bedrock://region/model, http(s)://..., hostfile://PATH, dns://NAME:PORT or command:PROGRAM for "
            "several, or the name of a backend in the batch.toml of the current directory.",
            group=MODEL,
        ),
    ] = "local://"
    model: Annotated[
        str | None, Parameter(help="Model name. Not needed if the server has only one model.", group=MODEL)
    ] = None
    tools: Annotated[
        list[str] | None,
        Parameter(
            help="Tools that lines may name, which are then called here: read_file:DIR, list_files:DIR, grep:DIR, "
            "http_get, web_search, or your own as module:function. They must not write.",
            group=MODEL,
            consume_multiple=True,
        ),
    ] = None
    max_inflight: Annotated[int | None, _option("Concurrent requests. By default, found automatically.")] = None
    rpm: Annotated[int | None, _option("Requests per minute. By default, what the service reports.")] = None
    tpm: Annotated[
        int | None, _option("Tokens per minute, input and output. By default, what the service reports.")
    ] = None
    max_turns: Annotated[int, _option("Maximum turns of a line that names tools.")] = 10
    max_retries: Annotated[int, _option("Retries of a failed request.")] = 3
    timeout_per_turn: Annotated[float, _option("Time limit of one model response, in seconds.")] = 300.0
    timeout_per_tool: Annotated[float, _option("Time limit of one tool call, in seconds.")] = 60.0

    def to_spec(self) -> BatchSpec:
        """Raises SpecError."""
        return BatchSpec.of(
            task="Lines of a batch.",
            inputs=(),
            backend=backend_of(self.backend),
            model=self.model,
            max_inflight=self.max_inflight,
            rpm=self.rpm,
            tpm=self.tpm,
            max_turns=self.max_turns,
            max_retries=self.max_retries,
            timeout_per_turn=self.timeout_per_turn,
            timeout_per_tool=self.timeout_per_tool,
        )

    def load_tools(self) -> list[Tool]:
        """Raises SpecError."""
        return [tool for name in self.tools or () for tool in _load(name)]


def _load(name: str) -> list[Tool]:
    built_in, _, folder = name.partition(":")
    if built_in in FILE_TOOLS:
        return load_tools([built_in], Path(folder or "."))
    return load_tools([name], Path.cwd())
