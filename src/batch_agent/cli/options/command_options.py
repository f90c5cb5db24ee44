"""Command-line options shared by `run`, `lint`, `plan` and `preview`."""

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from ...core.errors import SpecError
from ...core.options import Rows
from ...core.task_fields import STDIN, Fields, is_object_url, is_url
from ...data import SqlQuery, check_output_path, read_inputs
from ..import_by_name import importable_from, load_runtime, load_schema, load_scorers, load_servers, load_tools
from .help_groups import EVALUATIONS, LIMITS, MODEL, OUTPUT, PROMPTS, TASK
from .json_values import named_backend, parse_backends, parse_extra, parse_models, parse_prices

PASSED_THROUGH = (
    "key",
    "system_prompt",
    "tool_mode",
    "shared_results",
    "backend",
    "model",
    "lane",
    "max_inflight",
    "rpm",
    "tpm",
    "max_agents",
    "max_turns",
    "max_retries",
    "max_total_tokens",
    "max_usd",
    "deadline",
    "max_tokens",
    "temperature",
    "seed",
    "top_p",
    "timeout_per_agent",
    "timeout_per_turn",
    "timeout_per_tool",
    "oversized",
    "strict_prefix",
    "log_requests",
    "tokens",
)
"""Options that `BatchAgent.run` takes under the same names."""
PARSED = ("images", "stop", "extra", "prices")
"""Options that `BatchAgent.run` also takes, but as lists or dicts."""


NOT_STORED = "(not stored)"
"""Placeholder, in a saved command, for the value of an option that contained a secret."""


def _option(text: str, group: Group = TASK, **more: Any) -> Parameter:
    return Parameter(help=text, group=group, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Options of one task over a list of inputs."""

    task: Annotated[str, _option('Task of each agent, with {fields} from the inputs: "Summarize: {text}".')]
    inputs: Annotated[
        str,
        _option(
            "A .jsonl, .json, .csv, .tsv or .parquet file, also .gz, at an https:// address, or in an object store "
            '(quoted: "s3://bucket/in/*.parquet"; gs://, az://, hf://); - for standard input; a '
            'directory, or a pattern such as "docs/*.md", whose files become inputs with {path}, {name} and {text}; or '
            "a database, such as sqlite:///data.db, with --query. By default, what is piped in.",
            allow_leading_hyphen=True,
            show_default=False,
        ),
    ] = STDIN
    query: Annotated[
        str | None, _option('Query to run on a database: "SELECT id, text FROM reviews". Each row is an input.')
    ] = None
    limit: Annotated[int | None, _option("Use only the first N inputs.")] = None
    sample: Annotated[int | None, _option("Use a random sample of this many inputs, in input order.")] = None
    sample_seed: Annotated[int, _option("Another seed gives another sample.")] = 0
    where: Annotated[str | None, _option("Use only inputs that match, such as \"stars <= 2 and lang = 'en'\".")] = None
    input_format: Annotated[
        Literal["jsonl", "json", "csv", "tsv", "parquet", "lines"] | None,
        _option("Format of the inputs, if not that of their suffix. By default, standard input is jsonl."),
    ] = None
    encoding: Annotated[
        str | None, _option("Encoding of input files that are not UTF-8, such as cp1252. By default, they are refused.")
    ] = None
    key: Annotated[
        str | None, _option("Field that identifies an input, such as id: the key of its result, also on resume.")
    ] = None
    images: Annotated[
        list[str] | None,
        _option("Fields of the task whose texts are paths or URLs of images.", consume_multiple=True),
    ] = None
    schema: Annotated[
        str | None, _option("Schema of the answers: a JSON schema file, or a Pydantic model as module:Model.")
    ] = None
    tools: Annotated[
        list[str] | None,
        _option(
            "Tools that agents may call: read_file, list_files, grep, http_get, web_search, or your own as "
            "module:function.",
            consume_multiple=True,
        ),
    ] = None
    mcp: Annotated[
        list[str] | None,
        _option(
            "MCP servers whose tools agents may call: each a URL, or a command in quotes, such as 'npx -y server'.",
            consume_multiple=True,
        ),
    ] = None
    runtime: Annotated[
        str | None,
        _option("Run each agent as a program with its own tools: opencode, codex, or your own runtime as module:name."),
    ] = None
    workdir: Annotated[Path | None, _option("With --runtime: the directory to copy for each agent.")] = None
    config: Annotated[
        Path | None,
        _option("Read options from this .toml or .yaml file. The command line overrides the file."),
    ] = None
    backend: Annotated[
        str,
        _option(
            "Model server: local:// (embedded), vllm://host:port, sglang://, dynamo://, openai://, anthropic://, "
            "bedrock://region/model, azure://resource, gemini://, mistral://, groq://, together://, openrouter://, "
            "ollama://, lmstudio://, llamacpp://, http(s)://...; or a name of --backends.",
            MODEL,
        ),
    ] = "local://"
    backends: Annotated[
        list[str] | None,
        _option(
            "Backends by name, each with url, model, api_key, headers, api_version, rpm and more, as a JSON object: "
            "[backends.NAME] in the file. --backend NAME uses one. Keys are written as ${VARIABLE}.",
            MODEL,
            consume_multiple=True,
        ),
    ] = None
    model: Annotated[str | None, _option("Model name. Not needed if the server has only one model.", MODEL)] = None
    fallback: Annotated[
        list[str] | None,
        _option(
            "Fallbacks for what the backend cannot serve: models on it, other backends, or NAME=BACKEND, in order.",
            MODEL,
            consume_multiple=True,
        ),
    ] = None
    lane: Annotated[
        Literal["standard", "flex", "batch", "auto"],
        _option(
            "flex: requests at half the price, which may wait; batch: half the price, within hours; auto: the cheapest "
            "that the deadline leaves time for.",
            MODEL,
        ),
    ] = "standard"
    temperature: Annotated[float | None, _option("Sampling temperature. By default, the server's.", MODEL)] = None
    top_p: Annotated[float | None, _option("Nucleus sampling: above 0, up to 1.", MODEL)] = None
    max_tokens: Annotated[int | None, _option("Maximum length of one turn's answer, in tokens.", MODEL)] = None
    seed: Annotated[int | None, _option("Sampling seed.", MODEL)] = None
    stop: Annotated[
        list[str] | None,
        _option("Texts that end an answer when the model generates one.", MODEL, consume_multiple=True),
    ] = None
    extra: Annotated[
        list[str] | None,
        _option(
            "Further fields of the request, as NAME=VALUE or a JSON object: min_p=0.1.", MODEL, consume_multiple=True
        ),
    ] = None
    prices: Annotated[
        list[str] | None,
        _option(
            "Prices in dollars for a million tokens: MODEL=INPUT,CACHED,OUTPUT, or with two more numbers "
            "WRITTEN,WRITTEN_HOUR for input written to the provider's cache, or a JSON object with these names in "
            "lower case, long (prices of long prompts, with above), flex and batch.",
            MODEL,
            consume_multiple=True,
        ),
    ] = None
    samples: Annotated[int, _option("Answers for each input.", EVALUATIONS)] = 1
    models: Annotated[
        list[str] | None,
        _option(
            "Models that answer every input, to compare them: names on the backend, or NAME=BACKEND.",
            EVALUATIONS,
            consume_multiple=True,
        ),
    ] = None
    score: Annotated[
        list[str] | None,
        _option(
            "Scores of the answers: exact:FIELD, contains:FIELD, numeric:FIELD, regex:PATTERN, json_fields:FIELD, "
            "judge:RUBRIC (text or a file), or your own as module:function.",
            EVALUATIONS,
            consume_multiple=True,
        ),
    ] = None
    tool_mode: Annotated[
        Literal["auto", "native", "action"],
        _option(
            "native: the server's tool calls; action: one JSON action per turn; auto: what the server supports.", MODEL
        ),
    ] = "auto"
    shared_results: Annotated[
        Literal["inline", "first", "auto"],
        _option(
            "Where results of read and pure tools stand: inline: behind their calls; first: before each agent's own "
            "text, where servers cache them for all agents; auto: where less is computed.",
            PROMPTS,
        ),
    ] = "inline"
    max_inflight: Annotated[int | None, _option("Concurrent requests. By default, found automatically.", LIMITS)] = None
    rpm: Annotated[int | None, _option("Requests per minute. By default, what the service reports.", LIMITS)] = None
    tpm: Annotated[
        int | None, _option("Tokens per minute, input and output. By default, what the service reports.", LIMITS)
    ] = None
    max_agents: Annotated[
        int | None, _option("Concurrent agents. By default 10,000, or 20 with --runtime.", LIMITS)
    ] = None
    max_turns: Annotated[
        int | None, _option("Maximum turns per agent. By default 10, or 50 with --runtime.", LIMITS)
    ] = None
    max_retries: Annotated[int, _option("Retries of a failed request or an invalid answer.", LIMITS)] = 3
    max_total_tokens: Annotated[int | None, _option("Token budget of the run, input and output.", LIMITS)] = None
    max_usd: Annotated[float | None, _option("Budget of the run in dollars, where the price is known.", LIMITS)] = None
    deadline: Annotated[
        float | None, _option("Time limit of the run, in seconds. Agents still running then are stopped.", LIMITS)
    ] = None
    timeout_per_agent: Annotated[float, _option("Time limit of an agent, in seconds.", LIMITS)] = 1800.0
    timeout_per_turn: Annotated[float, _option("Time limit of one model response, in seconds.", LIMITS)] = 300.0
    timeout_per_tool: Annotated[float, _option("Time limit of one tool call, in seconds.", LIMITS)] = 60.0
    system_prompt: Annotated[str | None, _option("Text before the task, the same for all agents.", PROMPTS)] = None
    fields: Annotated[
        list[str] | None,
        _option(
            "Input fields to list below the task, in the order that shares the longest prefix.",
            PROMPTS,
            consume_multiple=True,
        ),
    ] = None
    oversized: Annotated[
        Literal["refuse", "chunk"],
        _option(
            "For an input that exceeds the model's context window: refuse fails it before it is sent, chunk splits it "
            "and merges the answers.",
            PROMPTS,
        ),
    ] = "refuse"
    no_hoist: Annotated[bool, _option("Keep text that all inputs share at its position in the task.", PROMPTS)] = False
    no_reorder: Annotated[bool, _option("Send the inputs in their original order.", PROMPTS)] = False
    strict_prefix: Annotated[
        bool, _option("Fail if something prevents the prompts from sharing a prefix.", PROMPTS)
    ] = False
    log_requests: Annotated[
        Path | None,
        _option(
            "Append each request to the model and its raw response to this .jsonl file. API keys are masked.", OUTPUT
        ),
    ] = None
    tokens: Annotated[
        bool,
        _option(
            "Keep the token ids and log probabilities of each turn, for `batch-agent export --format trl`. Needs vLLM "
            "or SGLang.",
            OUTPUT,
        ),
    ] = False

    @property
    def home(self) -> Path:
        """The project directory. Modules are imported from it, and file tools read it unless the inputs are a
        directory."""
        return Path.cwd() if self.config is None else self.config.absolute().parent

    @property
    def root(self) -> Path:
        """Directory that file tools may read."""
        return Path(self.inputs) if Path(self.inputs).is_dir() else self.home

    def to_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `BatchAgent.run`. Raises SpecError for a file or module that cannot be read."""
        if self.config is not None:
            importable_from(self.home)
        return {
            "task": Fields(self.task, *self.fields) if self.fields else self.task,
            "inputs": self._read(),
            "tools": [
                *load_tools(self.tools or [], self.root, encoding=self.encoding),
                *load_servers(self.mcp or [], self.home),
            ],
            "output_schema": load_schema(self.schema) if self.schema else None,
            "runtime": load_runtime(self.runtime, self.workdir),
            "hoist": not self.no_hoist,
            "reorder": not self.no_reorder,
            "samples": self.samples,
            "fallback": self.fallback or [],
            "models": self._models(),
            "score": load_scorers(self.score or [], self.home),
            **self.to_plain(),
        }

    def to_plain(self) -> dict[str, Any]:
        """The keyword arguments that are plain data. Raises SpecError."""
        parsed: dict[str, Any] = {"stop": self.stop, "images": self.images}
        parsed["extra"] = None if self.extra is None else parse_extra(self.extra)
        parsed["prices"] = None if self.prices is None else parse_prices(self.prices)
        given = {name: value for name, value in parsed.items() if value is not None}
        plain = {**{name: getattr(self, name) for name in PASSED_THROUGH}, **given}
        if self.backends is not None:
            plain["backend"] = named_backend(self.backend, parse_backends(self.backends))
        return plain

    def _models(self) -> Any:
        models = None if self.models is None else parse_models(self.models)
        if not isinstance(models, dict) or self.backends is None:
            return models
        known = parse_backends(self.backends)
        return {name: named_backend(backend, known) for name, backend in models.items()}

    def check_output_path(self, path: Path | str, option: str) -> None:
        """Raises SpecError if the output path is the inputs file or is inside the inputs directory."""
        if not self._is_database:
            check_output_path(self.inputs if self._is_stream else Path(self.inputs), path, option)

    def to_dict(self) -> dict[str, Any]:
        """All options by name, as a checkpoint stores them."""
        options = {name: getattr(self, name) for name in self.__slots__}
        return options if self._is_database or self._is_stream else {**options, "inputs": Path(self.inputs)}

    @property
    def _is_database(self) -> bool:
        return "://" in self.inputs and not is_url(self.inputs) and not is_object_url(self.inputs)

    @property
    def _is_stream(self) -> bool:
        """Whether the inputs are standard input, a download, or in an object store."""
        return self.inputs == STDIN or is_url(self.inputs) or is_object_url(self.inputs)

    @property
    def _rows(self) -> Rows:
        return Rows(
            limit=self.limit,
            sample=self.sample,
            sample_seed=self.sample_seed,
            where=self.where,
            input_format=self.input_format,
            encoding=self.encoding,
        )

    def _read(self) -> Any:
        if self._is_database:
            if self.query is None:
                raise SpecError('--inputs is a database, which needs a query: --query "SELECT ...".')
            return read_inputs(SqlQuery(self.inputs, self.query), self._rows)
        if self.query is not None:
            raise SpecError("--query needs a database in --inputs, such as --inputs sqlite:///data.db")
        if self.inputs == STDIN:
            _check_is_piped()
        return read_inputs(self.inputs if self._is_stream else Path(self.inputs), self._rows, _print_notice)


NAMES = (*CommandOptions.__slots__, "canary", "count", "plan_changed")
"""Options that messages of the library name as in Python."""


def _check_is_piped() -> None:
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        kind = 0
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):
        raise SpecError(
            "run needs --inputs. Give a file, as in --inputs texts.jsonl, or pipe them in, as in cat texts.jsonl | "
            "batch-agent run - ...\nSee batch-agent run --help"
        )
    _print_notice("Inputs: standard input")


def _print_notice(text: str) -> None:
    print(text, file=sys.stderr)


def from_saved(options: Mapping[str, Any]) -> tuple[CommandOptions, dict[str, Any]]:
    """Splits a saved command into the options of this group and its other options. Raises SpecError."""
    ours = {name: value for name, value in options.items() if name in CommandOptions.__slots__}
    if "inputs" not in ours:
        raise SpecError(
            "The URL of the inputs contained a password, which is not stored. Run the whole original command again: it "
            "resumes from the checkpoint."
        )
    ours["inputs"] = str(ours["inputs"])
    if ours.get("mcp") == [NOT_STORED]:
        raise SpecError(
            "The command of an MCP server contained a password or a key, which is not stored. Run the whole original "
            "command again: it resumes from the checkpoint."
        )
    if [NOT_STORED] in (ours.get("models"), ours.get("fallback")):
        raise SpecError(
            "The backend of a model contained a password, which is not stored. Run the whole original command again: "
            "it resumes from the checkpoint."
        )
    return CommandOptions(**ours), {name: value for name, value in options.items() if name not in ours}
