"""How many functions a run calls: `python -m benchmarks.peers.call_count PEER WORK`, where WORK is JSON.

On asyncio's own loop, whose callbacks are Python. The count hardly depends on the machine, or on what else it does.
"""

import asyncio
import json
import sys
import threading
from dataclasses import replace
from importlib import import_module
from types import FrameType
from typing import Any

from benchmarks.peers.work import Tally, Work

_WARM_UP = 16


class Calls:
    """Counts calls of functions, also of those in C, in all threads that begin meanwhile."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> "Calls":
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call"):
            self.number += 1


def main() -> None:
    work = Work.from_json(sys.argv[2])
    adapter = import_module(f"benchmarks.peers.adapters.{sys.argv[1]}")
    few = replace(work, agents=_WARM_UP, checkpoint=work.checkpoint and f"{work.checkpoint}-warm-up")
    asyncio.run(adapter.run(few, Tally(few)))
    tally = Tally(work)
    with Calls() as calls:
        asyncio.run(adapter.run(work, tally))
    print(json.dumps({"calls": calls.number, **tally.numbers()}))


if __name__ == "__main__":
    main()
