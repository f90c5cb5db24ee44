"""A flow that processes share, and the program of each: `python -m tests.support.shared_flow_process JSON`.

Its first stage calls a tool that writes, its second one answers about the first, and a reduce sums up."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from batch_agent import Flow, Tool

FIRST, SECOND = "note", "check"


def writing_tool(path: str, seconds: float, *, comes_second: bool) -> Tool:
    """Notes each call with the process that made it, in the middle of the time that it takes. `comes_second`: it waits
    until another process has made one."""

    @Tool.define(effect="write")
    def put(line: str) -> str:
        """Put it there."""
        own = str(os.getpid())
        while comes_second and not (
            Path(path).exists() and any(line.split()[1] != own for line in Path(path).read_text().splitlines())
        ):
            time.sleep(0.01)
        time.sleep(seconds / 2)
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(opened, f"{line} {os.getpid()}\n".encode())
        os.close(opened)
        time.sleep(seconds / 2)
        return f"put {line}"

    return put


def items(number: int) -> list[dict[str, Any]]:
    """[[sim: ...]] tells the simulated model its answers."""
    calls = [{"calls": [{"name": "put", "arguments": {"line": f"n{n}"}}]} for n in range(number)]
    return [
        {
            "n": n,
            "first": f"[[sim: {json.dumps([calls[n], {'text': f'noted {n}'}])}]]",
            "second": f"[[sim: {json.dumps({'text': f'checked {n}'})}]]",
        }
        for n in range(number)
    ]


def shared_flow(number: int, notes: Path, seconds: float = 0.02, *, comes_second: bool = False, **options: Any) -> Flow:
    put = writing_tool(str(notes), seconds, comes_second=comes_second)
    return (
        Flow(items(number), max_inflight=16, max_tokens=64, **options)
        .map(FIRST, "Note {n} {first}", tools=[put])
        .filter(lambda item: item["n"] % 5 > 0)
        .map(SECOND, "Check {n} {note} {second}")
        .reduce("report", "Sum up {n}.")
    )


def written(notes: Path) -> list[list[str]]:
    """What was put, and by which process."""
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def main() -> None:
    plan = json.loads(sys.argv[1])
    flow = shared_flow(plan["items"], Path(plan["notes"]), plan["seconds"], **plan["options"])
    asyncio.run(flow.work() if plan["kind"] == "work" else flow.run())


if __name__ == "__main__":
    main()
