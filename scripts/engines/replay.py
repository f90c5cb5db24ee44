"""The answers that Dynamo's mocker gives on request, since its own tokens are random."""

import subprocess
from pathlib import Path

from scripts.engines.layout import DYNAMO, MODEL, RECIPES

FILE_NAME = "replay.jsonl"


def build(folder: Path) -> None:
    """Write the replay file with Dynamo's environment; raises CalledProcessError."""
    script, tokenizer = RECIPES / "write_replay.py", MODEL.folder / "tokenizer.json"
    subprocess.run([str(DYNAMO.python), str(script), str(tokenizer), str(folder / FILE_NAME)], check=True)
