"""batch-agent inspect."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ...core.agent_config import AgentConfig
from ...core.errors import SpecError
from ...core.options.price import price_from_numbers
from ...core.protocols.store import Prices
from ...core.requests import Usage
from ...core.results import dollars, truncation_note
from ...core.safe_text import safe_text
from ...observe.checkpoint_results import CheckpointSummary, answer_schema
from ...observe.text.agent_trace import part, prompt_lines, tokens
from ...observe.text.prefix import shared_results_line
from ...observe.text.summary import cost_by_lane
from ...observe.text.text_format import one_line, status_counts
from ...plan.row_keys import row_key
from ...run.checkpoint_table import CheckpointTable
from ...store.reader import CheckpointReader
from ..agent_story import story_lines
from ..checkpoint import checkpoints_in, open_checkpoint
from ..run_address import RunLocation, open_run

_MAX_LENGTH = 100


def inspect(
    folder: RunLocation,
    *,
    run: str | None = None,
    agent: str | None = None,
    full: bool = False,
    schema: str | None = None,
    max_retries: int | None = None,
) -> None:
    """Prints a summary of the checkpoint, or the trace of one agent.

    Parameters
    ----------
    folder
        Checkpoint directory, also in an object store, or the URL of a Redis server. For a run with a reduce, all stages
        are shown; pass a stage's directory to see one.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    agent
        Agent to trace: its key, its index, or the beginning of its key.
    full
        Shorten nothing: the system prompt, the tools, the schema, and all messages and calls of the agent. Without
        --agent: all failures.
    schema
        The run's Pydantic model as module:Model, if it converts answers or fills in defaults.
    max_retries
        The run's value, if it was started from Python with a value other than 3.
    """
    console = Console(highlight=False, soft_wrap=True)
    with open_run(folder, run) as source:
        if agent is not None or schema is not None:
            source.check_is_one("inspect")
        retries = source.max_retries() if max_retries is None else max_retries
        checkpoints = checkpoints_in(source.folder)
        missing: list[SpecError] = []
        for checkpoint in checkpoints:
            with open_checkpoint(checkpoint, schema, retries) as (reader, config):
                if agent is not None:
                    try:
                        stored = reader.find_input(agent)
                    except SpecError as error:  # another backend has answered the input
                        missing.append(error)
                        if len(missing) == len(checkpoints):
                            raise missing[0] from None
                        continue
                    lines = story_lines(checkpoint, config, stored, full=full)
                    if len(checkpoints) > 1:
                        _print(console, [Text(f"{source.title_of(checkpoint)}  {config.model}", style="bold")])
                else:
                    lines = _summary(checkpoint, source.title_of(checkpoint), reader, config, full=full)
                _print(console, lines)


def _print(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        line.plain = safe_text(line.plain)  # one character for each: styles keep their positions
        console.print(line)


def _summary(folder: Path, title: str, reader: CheckpointReader, config: AgentConfig, *, full: bool) -> Iterator[Text]:
    summary = CheckpointSummary(max_failures=None) if full else CheckpointSummary()
    for stored, result in CheckpointTable(folder, reader, config):
        summary.add(result, stored.facts)
    yield Text(title, style="bold")
    if full:
        yield from part("task", reader.plan()["question"]["task"], "cyan")
        yield from prompt_lines(config)
    else:
        yield from _plan_lines(reader.plan(), config)
    yield from _state_lines(summary, reader.usage(), reader.prices())
    for seconds, index, key in summary.slowest:
        yield _line("slowest", f"{index:>6}  {row_key(key)}  {seconds:.2f} s")
    for index, key, error in summary.first_failures:
        yield _line("failed", f"{index:>6}  {row_key(key)}  {str(error) if full else _short(str(error))}", "red")
    if left := summary.failures.total() - len(summary.first_failures):
        yield _line("", f"{left:,} more failed: --full", "red")
    yield Text("To trace one agent: --agent INDEX, or the beginning of its KEY.", style="dim")


def _plan_lines(plan: Mapping[str, Any], config: AgentConfig) -> Iterator[Text]:
    yield _line("task", _short(plan["question"]["task"]))
    if config.prompt.system:
        yield _line("system", _short(config.prompt.system))
    tools = ", ".join(tool.name for tool in config.prompt.tools)
    answers = "text" if answer_schema(plan) is None else "JSON with a schema"
    yield _line("model", f"{config.model}, max {config.max_turns} turns, answers: {answers}")
    if tools:
        yield _line(
            "tools", f"{tools} ({'native tool calls' if config.tool_mode == 'native' else 'one JSON action per turn'})"
        )


def _state_lines(summary: CheckpointSummary, usage: Usage, prices: Prices | None) -> Iterator[Text]:
    yield _line("agents", f"{summary.statuses.total():,}: {status_counts(summary.statuses)}", "bold")
    if summary.failures:
        yield _line("", ", ".join(f"{count:,} {kind}" for kind, count in summary.failures.most_common()), "red")
    if summary.truncated:
        yield _line("", truncation_note(summary.truncated), "yellow")
    yield _line("usage", tokens(usage))
    if prices is not None:
        price = price_from_numbers(prices)
        yield _line("cost", dollars(price.of(usage)) + cost_by_lane(price.of, usage))
    if summary.calls:
        sources = ", ".join(f"{count:,} {source}" for source, count in summary.calls.most_common())
        failed = f"; {summary.failed_calls:,} failed" if summary.failed_calls else ""
        yield _line("calls", f"{summary.calls.total():,}: {sources}{failed}")
        if (shared := summary.reads.report()) is not None:
            yield _line("", shared_results_line(shared))


def _line(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{label:<10}", style or "cyan"), text)


def _short(text: str) -> str:
    return one_line(text, _MAX_LENGTH)
