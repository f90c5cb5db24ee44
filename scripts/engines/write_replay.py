"""write_replay.py TOKENIZER_JSON REPLAY_FILE: what the mocker says to a request annotated output_replay_id:ID.

Runs in Dynamo's environment, not in ours.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]

END = "<|im_end|>"


def hermes_call(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ANSWERS = {
    "one_call": hermes_call("search", {"query": "prefix cache"}),
    "two_calls": hermes_call("search", {"query": "a"}) + "\n" + hermes_call("search", {"query": "b"}),
    "text": "The answer is forty two, because the documentation says so in every chapter of the book.",
    "json": json.dumps({"city": "Paris", "population": 2100000}),
}


def write(tokenizer: Path, out: Path) -> None:
    encoder = Tokenizer.from_file(str(tokenizer))
    with out.open("w") as file:
        for name, text in ANSWERS.items():
            ids = encoder.encode(text + END, add_special_tokens=False).ids
            row = {"request_id": name, "timestamp": 0, "input_length": 1, "hash_ids": []}
            file.write(json.dumps(row | {"output_length": len(ids), "output_token_ids": ids}) + "\n")


write(Path(sys.argv[1]), Path(sys.argv[2]))
