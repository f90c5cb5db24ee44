"""HTTP proxy on a local port in front of a server, with faults: busy answers, and answers that are lost."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

ProxyFault = Literal["busy", "lost"] | None
_OWN_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class FaultyHttpProxy:
    """`rule` decides by the number of the request, from 1 on, which may change while it runs."""

    def __init__(self, port: int) -> None:
        self.rule: Callable[[int], ProxyFault] = lambda number: None
        self.faults = 0
        self._requests = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, port))
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def open(self) -> "Iterator[FaultyHttpProxy]":
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def next_fault(self) -> ProxyFault:
        with self._lock:
            self._requests += 1
            fault = self.rule(self._requests)
            self.faults += fault is not None
            return fault


def request_body(request: BaseHTTPRequestHandler) -> bytes:
    """The body of a request, also if it comes in chunks."""
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    chunks = list[bytes]()
    while size := int(request.rfile.readline().partition(b";")[0], 16):
        chunks.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(chunks)


def _handler(proxy: FaultyHttpProxy, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            return

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._forward
            raise AttributeError(name)

        def _forward(self) -> None:
            body, fault = request_body(self), proxy.next_fault()
            if fault == "busy":
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            server = HTTPConnection("127.0.0.1", port, timeout=60)
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OWN_HEADERS:
                    server.putheader(name, value)
            server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            answer = server.getresponse()
            data = answer.read()
            server.close()
            if fault == "lost":  # the request has had its effect
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(answer, data)

        def _answer(self, answer: HTTPResponse, data: bytes) -> None:
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _OWN_HEADERS:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
