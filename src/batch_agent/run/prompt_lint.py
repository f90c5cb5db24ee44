"""Prefix report of a run, made before the run."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ..core.errors import StoreError
from ..core.run_reports import PrefixReport, SharedResults
from ..lazy_imports import lazy_modules
from ..plan.compile import Plan, prefix_chars
from ..plan.prefix_report import prefix_report
from ..schedule.reference_model import MAX_READERS
from .resource_opener import inline_tools, offline_plan, open_preview
from .resources import placeable
from .setup import ANY_SERVER, RunSetup

with lazy_modules(globals()):
    from ..observe import checkpoint_results
    from ..store import reader


async def lint_prompts(setup: RunSetup, *, exact: bool = False) -> PrefixReport:
    """Prefix report of a run, as far as it can be predicted without a server; with the checkpoint of an earlier run,
    also what its agents read. `exact`: connects to the server, to count tokens. Raises SpecError and BackendError."""
    spec, folder = setup.spec, setup.spec.checkpoint_dir
    async with AsyncExitStack() as stack:
        if exact:
            preview = await stack.enter_async_context(open_preview(setup))
            report, plan, tools = preview.report(), preview.plan, preview.tools
        else:
            inputs, plan, tools = await offline_plan(setup, stack, ANY_SERVER)
            inline = inline_tools(spec, tools)
            report = prefix_report(spec, plan.config, plan.layout, inputs.known, inputs.total, None, inline)
    if folder is None:
        return report
    recorded = await asyncio.to_thread(_recorded_reads, folder, plan, placeable(tools))
    return replace(report, shared_results=recorded)


def _recorded_reads(folder: Path, plan: Plan, shared_tools: Sequence[str]) -> SharedResults | None:
    """What agents of an earlier run with this checkpoint read; None if it cannot be read."""
    reads = checkpoint_results.RecordedReads(prefix_chars(plan.config.prompt) + plan.references_at, shared_tools)
    try:
        with reader.CheckpointReader(folder) as checkpoint:
            for _, facts in islice(checkpoint.histories(), MAX_READERS):
                reads.add(facts)
    except StoreError:
        return None
    return reads.report()
