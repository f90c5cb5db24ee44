"""Story of one input in a checkpoint: what its agent did, or why it has none."""

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from ..core.agent_config import AgentConfig
from ..core.facts import failure_of
from ..observe.report.lock_probe import is_held
from ..observe.text.agent_trace import agent_trace_lines, as_text, part
from ..observe.text.text_format import one_line
from ..plan.row_keys import row_key
from ..store.reader import StoredInput

_MAX_LENGTH = 200


def story_lines(folder: Path, config: AgentConfig, stored: StoredInput, *, full: bool = False) -> Iterator[Text]:
    """The story of an input's agent, or the reason why it was not started. `full`: as for `agent_trace_lines`."""
    if stored.facts:
        is_running = failure_of(stored.facts) is None and is_held(folder) is not False
        yield from agent_trace_lines(config, stored.key, stored.facts, full=full, is_running=is_running)
        return
    yield Text.assemble((f"Agent {stored.index}", "bold"), f"  key {row_key(stored.key)}")
    value = as_text(stored.value)
    yield from part("input", value if full else one_line(value, _MAX_LENGTH))
    if stored.error is None:
        yield from part("not started", "", "bold yellow")
    else:
        yield from part("failed", f"before its first request: {stored.error}", "bold red")
