"""fake_opencode.py SETTINGS WORDS...: a stand-in for OpenCode that speaks its command line and its HTTP.

It does what it is told line by line: WRITE file text, SAY text, TELL url|key|model|pid|count|env NAME, RUN command,
FAIL message, HANG, DIE. SETTINGS is a JSON file that says how it is broken, if it is. It needs nothing but Python.
"""

import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SETTINGS = json.loads(Path(sys.argv[1]).read_text())
TOKENS = {"input": 40, "output": 7, "reasoning": 3, "cache": {"read": 60, "write": 0}}


class Failed(Exception):
    pass


def config(folder: Path) -> dict[str, Any]:
    """With {file:...} read from the folder on, as OpenCode does."""

    def content(found: "re.Match[str]") -> str:
        return json.dumps((folder / found[1]).read_text().strip())[1:-1]

    read = json.loads(re.sub(r"\{file:([^}]+)\}", content, os.environ["OPENCODE_CONFIG_CONTENT"]))
    if "refused" in read:
        raise Failed(read["refused"])
    assert isinstance(read, dict)
    return read


class Session:
    """What was said in one folder."""

    def __init__(self, folder: Path, messages: list[dict[str, Any]] | None = None) -> None:
        self.folder = folder
        self.messages = messages or []
        self.is_aborted = threading.Event()

    def ask(self, text: str) -> None:
        self.messages.append({"info": {"role": "user"}, "parts": [{"type": "text", "text": text}]})
        for line in [*text.splitlines(), "END"]:
            word, _, rest = line.partition(" ")
            parts: list[dict[str, Any]] = []
            try:
                is_last = self.do(word, rest, parts)
            except Failed as failed:
                error = {"name": "APIError", "data": {"message": str(failed), "isRetryable": False}}
                self.messages.append({"info": {"role": "assistant", "error": error}, "parts": []})
                return
            if parts:
                parts.append({"type": "step-finish", "tokens": TOKENS})
                self.messages.append({"info": {"role": "assistant"}, "parts": parts})
            if is_last:
                return

    def do(self, word: str, rest: str, parts: list[dict[str, Any]]) -> bool:
        """Whether that was its last word."""
        if word == "WRITE":
            name, _, text = rest.partition(" ")
            parts.append(call("write", {"filePath": name, "content": text}, "Wrote file."))
            (self.folder / name).write_text(text)
        elif word == "RUN":
            shell = config(self.folder)["shell"]
            command = ["/bin/sh", "-c", 'exec "$0" -c "$1"', shell, rest]
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            parts.append(call("bash", {"command": rest}, done.stdout))
        elif word == "TELL":
            parts.append({"type": "text", "text": self.settings(rest)})
        elif word == "FAIL":
            raise Failed(rest)
        elif word == "HANG":
            self.is_aborted.wait()
        elif word == "DIE":
            os._exit(3)
        elif word in ("SAY", "END"):
            parts.append({"type": "text", "text": rest})
        return word in ("SAY", "TELL", "END", "HANG")

    def settings(self, what: str) -> str:
        kind, _, name = what.partition(" ")
        if kind in ("pid", "count"):
            return str(os.getpid() if kind == "pid" else len(self.messages))
        if kind == "env":
            return os.environ.get(name, "nothing")
        if kind == "config":
            return json.dumps(config(self.folder)[name])
        provider = config(self.folder)["provider"]["batch"]
        options = provider["options"]
        return str({"url": options["baseURL"], "key": options["apiKey"], "model": next(iter(provider["models"]))}[kind])


def call(tool: str, given: dict[str, Any], output: str) -> dict[str, Any]:
    state = {"status": "completed", "input": given, "output": output, "time": {"start": 1000, "end": 1500}}
    return {"type": "tool", "tool": tool, "callID": "call_1", "state": state}


class Answers(BaseHTTPRequestHandler):
    sessions: dict[str, Session] = {}

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        password = base64.b64encode(b"opencode:" + os.environ["OPENCODE_SERVER_PASSWORD"].encode()).decode()
        if self.headers.get("Authorization") != f"Basic {password}":
            return self.reply(401, {"name": "Unauthorized"})
        url = urlsplit(self.path)
        folder = Path(parse_qs(url.query).get("directory", ["/"])[0])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            return self.reply(200, self.done(self.command, url.path.strip("/").split("/"), folder, body))
        except Failed as failed:
            return self.reply(400, {"name": "ConfigInvalidError", "data": {"message": str(failed)}})

    def done(self, method: str, path: list[str], folder: Path, body: bytes) -> Any:
        match method, path:
            case "GET", ["global", "health"]:
                return {"healthy": True}
            case "GET", ["config"]:
                return config(folder)
            case "POST", ["instance", "dispose"]:
                return True
            case "POST", ["session"]:
                name = f"ses_{len(self.sessions)}"
                self.sessions[name] = Session(folder)
                return {"id": name}
        session = self.sessions[path[1]]
        match method, path[2]:
            case "POST", "message":
                asked = json.loads(body)
                assert asked["agent"] == "batch-agent"
                session.ask(asked["parts"][0]["text"])
                return session.messages[-1]
            case "POST", "abort":
                if SETTINGS.get("deaf"):
                    time.sleep(600)
                session.is_aborted.set()
                return True
        return "garbage" if SETTINGS.get("garbage") else session.messages

    def reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def serve() -> None:
    match SETTINGS.get("start"):
        case "dies":
            sys.exit("no database")
        case "hangs":
            time.sleep(600)
        case "is sick":
            print("opencode server listening on http://127.0.0.1:9", flush=True)
            sys.exit("the port is taken")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    print(f"opencode server listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def run(words: list[str]) -> None:
    kept = Path(os.environ["XDG_DATA_HOME"]) / "session.json"
    name = words[words.index("--session") + 1] if "--session" in words else "ses_1"
    session = Session(Path(os.environ["PWD"]), json.loads(kept.read_text()) if "--session" in words else None)
    before = len(session.messages)
    session.ask(sys.stdin.read())
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(session.messages))
    print("a warning that is no event")
    for number, message in enumerate(session.messages[before:]):
        if error := message["info"].get("error"):
            print(json.dumps({"type": "error", "sessionID": name, "error": error}))
            sys.exit(1)
        for part in message["parts"] if message["info"]["role"] == "assistant" else ():
            print(json.dumps({"type": "part", "sessionID": name, "part": {**part, "messageID": str(number)}}))
    if SETTINGS.get("is loud"):
        print("x" * 40_000_000)


def main(words: list[str]) -> None:
    match words:
        case ["--version"]:
            print(SETTINGS.get("version", "1.18.18"))
            sys.exit(SETTINGS.get("version status", 0))
        case ["debug", "config"]:
            try:
                config(Path(os.environ["PWD"]))
            except Failed as failed:
                sys.exit(f"\x1b[91mError: \x1b[0m{failed}")
        case ["serve", *_]:
            serve()
        case ["run", *rest]:
            run(rest)
        case _:
            sys.exit(f"unknown command {words}")


main(sys.argv[2:])
