"""Stand-in for the Hugging Face Hub with one dataset, as far as its client reads and writes files, with faults."""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from .faulty_http_proxy import request_body

DATASET = "user/name"
HubFault = Literal["busy", "lost"] | None
_API = re.compile(rf"/api/datasets/{DATASET}(?:/(revision|tree|preupload|commit)/main(?:/(.*?))?)?/?$")
_CONTENT = re.compile(rf"/datasets/{DATASET}/resolve/[^/]+/(.*)$")


class HubServer:
    """`files`: of the dataset, by path. `rule` decides by the number of the request, from 1 on; an answer can only be
    lost to a commit."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.rule: Callable[[int], HubFault] = lambda number: None
        self.faults = 0
        self._requests = 0
        self._commits = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def commit(self) -> str:
        return f"{self._commits:040x}"

    @contextmanager
    def open(self) -> "Iterator[HubServer]":
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, path: str, query: str, body: bytes) -> tuple[int, bytes, str]:
        """Status, body and error code; status 0 if the answer is lost."""
        with self._lock:
            self._requests += 1
            fault = self.rule(self._requests)
            if fault == "busy":
                self.faults += 1
                return 503, b"", ""
            if (content := _CONTENT.match(path)) is not None:
                found = self.files.get(content[1])
                return (404, b"", "EntryNotFound") if found is None else (200, found, "")
            if (api := _API.match(path)) is None:
                return 404, b"", "RepoNotFound"
            status, answer, code = self._api(api[1], api[2] or "", query, body)
            if fault == "lost" and api[1] == "commit":
                self.faults += 1
                status = 0
            return status, json.dumps(answer).encode(), code

    def _api(self, what: str | None, path: str, query: str, body: bytes) -> tuple[int, Any, str]:
        match what:
            case "tree":
                found = self._tree(path, is_recursive=parse_qs(query).get("recursive") == ["true"])
                return (200, found, "") if found else (404, {"error": "Entry not found"}, "EntryNotFound")
            case "preupload":
                files = [{**each, "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(body)["files"]]
                return 200, {"files": files}, ""
            case "commit":
                self._apply([json.loads(line) for line in body.splitlines()])
                url = f"{self.url}/datasets/{DATASET}/commit/{self.commit}"
                return 200, {"success": True, "commitUrl": url, "commitOid": self.commit}, ""
            case _:
                return 200, {"id": DATASET, "sha": self.commit, "private": False, "siblings": [], "tags": []}, ""

    def _tree(self, folder: str, *, is_recursive: bool) -> list[dict[str, Any]]:
        start = f"{folder}/" if folder else ""
        below = {path: path.removeprefix(start) for path in self.files if path.startswith(start)}
        folders = {start + rest.partition("/")[0] for rest in below.values() if "/" in rest}
        found = [_entry(path, self.files[path]) for path, rest in below.items() if is_recursive or "/" not in rest]
        return found + [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in folders]

    def _apply(self, operations: list[dict[str, Any]]) -> None:
        self._commits += 1
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                self.files.pop(value["path"], None)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            return

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            status, answer, code = hub.answer(unquote(url.path), url.query, request_body(self))
            if not status:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            whole, ranged = len(answer), wanted is not None and status == 200
            if wanted is not None and ranged:
                start, end = int(wanted[1]), int(wanted[2] or whole - 1)
                status, answer = 206, answer[start : end + 1]
            self.send_response(status)
            if wanted is not None and ranged:
                self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(answer) - 1}/{whole}")
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("ETag", f'"{hub.commit}"')
            if code:
                self.send_header("X-Error-Code", code)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_POST = do_HEAD = do_GET

    return Handler
