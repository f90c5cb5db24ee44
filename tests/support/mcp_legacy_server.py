"""An MCP server of the protocol before 2026, without the SDK, run as a script over stdio: it starts in a moment, and
therefore imports next to nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_NAMES = ("echo", "whoami", "die", "fork", "broken", "refuse", "half", "hang")
_ABOUT: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "legacy", "version": "1"},
}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    match message["method"]:
        case "initialize":
            return _result(message, _ABOUT)
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": _hints(name)} for name in _NAMES]
            if odd := os.environ.get("MCP_ODD_TOOL"):
                properties = {"a": {"type": "nonsense"}}
                tools.append({"name": odd, "inputSchema": {"type": "object", "properties": properties}})
            return _result(message, {"tools": tools})
        case "tools/call":
            return _called(message, message["params"]["name"], message["params"].get("arguments", {}))
        case method if "id" in message:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": f"no {method}"}}
    return None


def _hints(name: str) -> dict[str, bool]:
    return {"readOnlyHint": True} if name == "whoami" else {}


def _called(message: dict[str, Any], name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    text = arguments.get("text", "")
    match name:
        case "whoami":
            text = str(os.getpid())
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fork":
            sleeps = subprocess.Popen(
                ["sleep", "600"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=arguments.get("away", False),
            )
            text = str(sleeps.pid)
        case "hang":
            Path(arguments["note"]).write_text("under way\n")
            return None
        case "broken":
            error = {"code": -32602, "message": "text is too long"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        case "half":
            text = "cut here: \ud83d"
        case "refuse":
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32000, "message": "no such row"}}
    return _result(message, {"content": [{"type": "text", "text": text}]})


def _result(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def main() -> None:
    for line in sys.stdin:
        given = answer(json.loads(line))
        if given is not None:
            print(json.dumps(given), flush=True)


if __name__ == "__main__":
    main()
