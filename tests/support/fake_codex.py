"""fake_codex.py WORDS...: a stand-in for Codex that speaks its command line and its events.

It does what it is told line by line: WRITE file text, SAY text, TELL env NAME | config NAME | session, FAIL message,
EXIT code, NOISE. It needs nothing but Python.
"""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

HOME = Path(os.environ["CODEX_HOME"])


def config() -> dict[str, Any]:
    return tomllib.loads((HOME / "config.toml").read_text())


def emit(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def do(word: str, rest: str) -> None:
    match word, rest.split():
        case "WRITE", [file, *text]:
            Path(file).write_text(" ".join(text))
        case "SAY", _:
            emit(type="item.completed", item={"id": "item_0", "type": "agent_message", "text": rest})
        case "TELL", ["env", name]:
            do("SAY", os.environ.get(name, "nothing"))
        case "TELL", ["config", name]:
            do("SAY", json.dumps(config().get(name)))
        case "TELL", ["session"]:
            do("SAY", " ".join(sys.argv[1:]))
        case "FAIL", _:
            emit(type="error", message=rest)
            emit(type="turn.failed", error={"message": rest})
            sys.exit(1)
        case "EXIT", [code]:
            print("it is broken", file=sys.stderr)
            sys.exit(int(code))
        case "NOISE", _:
            print("not JSON")
            emit(type="item.completed", item={"type": "reasoning", "text": "Hm."})
            emit(type="turn.completed", usage={"input_tokens": 1})


def main(words: list[str]) -> None:
    if words == ["--version"]:
        print(os.environ.get("FAKE_VERSION", "codex-cli 0.169.0"))
    elif words == ["features", "list"]:
        if "refused" in config():
            sys.exit(f"Error: {config()['refused']}")
    else:
        thread = words[words.index("resume") + 1] if "resume" in words else f"thread-{os.getpid()}"
        emit(type="thread.started", thread_id=thread)
        for line in sys.stdin.read().splitlines():
            word, _, rest = line.partition(" ")
            do(word, rest)


main(sys.argv[1:])
