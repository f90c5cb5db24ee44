"""Which runs can have one fabric: what a tool told one of them, it need not be asked again by the others."""

from collections.abc import Sequence
from typing import Any

from ..core.errors import SpecError
from ..core.spec import BatchSpec
from .tool import Tool

Need = tuple[BatchSpec, Sequence[Tool]]


def toolsets(needs: Sequence[Need]) -> list[tuple[list[int], list[Tool]]]:
    """The runs, by their numbers, in groups, and all tools of each group. Runs with other settings for tools, or with
    another tool of the same name, are in different ones."""
    found: list[tuple[list[int], list[Tool]]] = []
    for number, (spec, tools) in enumerate(needs):
        for runs, known in found:
            if _settings(needs[runs[0]][0]) == _settings(spec) and _agree(known, tools):
                runs.append(number)
                names = {tool.name for tool in known}
                known += [tool for tool in tools if tool.name not in names]
                break
        else:
            found.append(([number], list(tools)))
    return found


def _settings(spec: BatchSpec) -> tuple[Any, ...]:
    return spec.timeouts.tool, spec.context.max_tool_tokens, spec.tooling


def _agree(known: Sequence[Tool], tools: Sequence[Tool]) -> bool:
    by_name = {tool.name: tool for tool in known}
    return all(_same(by_name.get(tool.name, tool), tool) for tool in tools)


def _same(one: Tool, other: Tool) -> bool:
    """A plain function is made a tool of for each run."""
    if one is other:
        return True
    return one.function is other.function and _ways(one) == _ways(other)


def _ways(tool: Tool) -> tuple[Any, ...]:
    return tool.description, tool.sharing, tool.pace, tool.max_tokens, tool.summarize, tool.batch


def check_names(tools: Sequence[Tool]) -> None:
    """Raises SpecError for two tools of the same name."""
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"Two tools have the same name: {', '.join(twice)}. Give one another with name=...")
