"""Sort and sum up customer notes on several machines: each stage of the flow is a shared run.

    python examples/shared_flow.py NOTES_FOLDER --store redis://10.0.0.5:6379/0 --backend vllm://gpu:8000

The same line with --work at the end, on any machine, takes a part of the agents of both stages. It needs no notes.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from batch_agent import Flow


class Note(BaseModel):
    product: Literal["blender", "lamp", "phone", "desk", "other"]
    sentiment: Literal["positive", "negative"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", required=True)
    parser.add_argument("--run-id", default="notes")
    parser.add_argument("--backend", default="local://")
    parser.add_argument("--work", action="store_true")
    options = parser.parse_args()
    notes = [{"text": path.read_text()} for path in sorted(options.folder.glob("*.txt"))]
    flow = (
        Flow(notes, backend=options.backend, store=options.store, run_id=options.run_id, max_tokens=200)
        .map("note", "Report the product and the sentiment.\n{text}", output_schema=Note)
        .filter(lambda item: item["note"].sentiment == "negative")
        .reduce("report", "What do these {n} customers dislike about the {group}?", group_by="note.product")
    )
    if options.work:
        asyncio.run(flow.work())
        return
    outcome = flow.run_sync()
    for item in outcome.items:
        print(item["group"], item["report"] if item.ok else item.error, sep="\t")
    print("; ".join(f"{name}: {len(stage.results)} agents" for name, stage in outcome.stages.items()))


if __name__ == "__main__":
    main()
