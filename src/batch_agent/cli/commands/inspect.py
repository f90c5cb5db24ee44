"""batch-agent inspect."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ...core.agent_config import AgentConfig
from ...core.requests import Usage
from ...core.safe_text import safe_text
from ...observe.checkpoint_results import CheckpointSummary, answer_schema
from ...observe.text.agent_trace import agent_trace_lines, tokens
from ...observe.text.formatting import one_line
from ...store.reader import CheckpointReader
from ..checkpoint import check_is_one, checkpoints_in, open_checkpoint

_LONGEST = 100


def inspect(
    folder: Path, *, agent: str | None = None, schema: str | None = None, max_retries: int | None = None
) -> None:
    """Prints what the checkpoint holds.

    Parameters
    ----------
    folder
        The checkpoint; of a run with a reduce, all stages are shown, or the one whose folder is named (FOLDER/map).
    agent
        The agent whose story to tell: its index, or the beginning of its key.
    schema
        The run's own Pydantic model as module:Model, where it converts answers or fills them in.
    max_retries
        The run's own, if it was started from Python with another one than 3.
    """
    console = Console(highlight=False, soft_wrap=True)
    if agent is not None or schema is not None:
        check_is_one(folder, "inspect")
    for place in checkpoints_in(folder):
        _show(console, place, agent, schema, max_retries)


def _show(console: Console, folder: Path, agent: str | None, schema: str | None, max_retries: int | None) -> None:
    with open_checkpoint(folder, schema, max_retries) as (reader, rules):
        if agent is not None:
            key = reader.find(agent).key
            lines = agent_trace_lines(rules, key, reader.facts(key))
        else:
            lines = _summary(folder, reader, rules)
        for line in lines:
            line.plain = safe_text(line.plain)  # character by character: its styles stay where they are
            console.print(line)


def _summary(folder: Path, reader: CheckpointReader, rules: AgentConfig) -> Iterator[Text]:
    recap = CheckpointSummary()
    for known, facts in reader.histories():
        recap.add(rules, known.index, known.key, facts)
    yield Text(str(folder), style="bold")
    yield from _plan_lines(reader.plan(), rules)
    yield from _state_lines(recap, reader.usage())
    for seconds, index, key in recap.slowest:
        yield _line("slowest", f"{index:>6}  {key}  {seconds:.2f} s")
    for index, key, error in recap.first_failures:
        yield _line("failed", f"{index:>6}  {key}  {_short(str(error))}", "red")
    yield Text("One agent's story: --agent INDEX, or the beginning of its KEY.", style="dim")


def _plan_lines(plan: Mapping[str, Any], rules: AgentConfig) -> Iterator[Text]:
    yield _line("task", _short(plan["question"]["task"]))
    if rules.prompt.system:
        yield _line("system", _short(rules.prompt.system))
    tools = ", ".join(tool.name for tool in rules.prompt.tools)
    answers = "texts" if answer_schema(plan) is None else "JSON of a schema"
    yield _line("model", f"{rules.model}, at most {rules.max_turns} turns, answers are {answers}")
    if tools:
        yield _line("tools", f"{tools} ({'native calls' if rules.tool_mode == 'native' else 'one JSON action a turn'})")


def _state_lines(recap: CheckpointSummary, usage: Usage) -> Iterator[Text]:
    states = f"{recap.agents:,}: {recap.answered:,} answered, {recap.failed:,} failed, {recap.under_way:,} under way"
    yield _line("agents", states, "bold")
    if recap.failures:
        yield _line("", ", ".join(f"{count:,} {kind}" for kind, count in recap.failures.most_common()), "red")
    yield _line("used", tokens(usage))
    if recap.calls:
        sources = ", ".join(f"{count:,} {source}" for source, count in recap.calls.most_common())
        failed = f"; {recap.failed_calls:,} gave an error" if recap.failed_calls else ""
        yield _line("calls", f"{recap.calls.total():,}: {sources}{failed}")


def _line(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{label:<10}", style or "cyan"), text)


def _short(text: str) -> str:
    return one_line(text, _LONGEST)
