"""Groups of runs that can share one tool executor, and with it the results of their tools."""

from collections.abc import Sequence
from typing import Any

from ..core.errors import SpecError
from ..core.spec import BatchSpec
from .tool import Tool

Need = tuple[BatchSpec, Sequence[Tool]]


def group_by_tools(needs: Sequence[Need]) -> list[tuple[list[int], list[Tool]]]:
    """Groups the runs, by their positions in `needs`, with all tools of each group. Runs that differ in their settings
    for tools, or that have different tools of the same name, are in different groups."""
    found: list[tuple[list[int], list[Tool]]] = []
    for number, (spec, tools) in enumerate(needs):
        for runs, known in found:
            if _settings(needs[runs[0]][0]) == _settings(spec) and _are_compatible(known, tools):
                runs.append(number)
                names = {tool.name for tool in known}
                known += [tool for tool in tools if tool.name not in names]
                break
        else:
            found.append(([number], list(tools)))
    return found


def _settings(spec: BatchSpec) -> tuple[Any, ...]:
    return spec.timeouts.tool, spec.context.max_tool_tokens, spec.tool_caching


def _are_compatible(known: Sequence[Tool], tools: Sequence[Tool]) -> bool:
    by_name = {tool.name: tool for tool in known}
    return all(_same(by_name.get(tool.name, tool), tool) for tool in tools)


def _same(one: Tool, other: Tool) -> bool:
    """Whether two tools are interchangeable: a plain function becomes a new Tool in each run."""
    if one is other:
        return True
    return one.function is other.function and _options(one) == _options(other)


def _options(tool: Tool) -> tuple[Any, ...]:
    return tool.description, tool.sharing, tool.limits, tool.max_tokens, tool.summarize, tool.batch


def check_names(tools: Sequence[Tool]) -> None:
    """Raises SpecError for two tools of the same name."""
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"Two tools have the same name: {', '.join(twice)}. Rename one of them with name=..., or those of an MCP "
            "server with MCP(..., prefix=...)."
        )
