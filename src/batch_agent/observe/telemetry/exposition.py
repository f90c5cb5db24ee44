"""Serves metrics to a Prometheus that asks for them. Needs prometheus-client."""

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from ...core.errors import SpecError
from ...core.validation import port as check_port

_NOTICES_THE_END_WITHIN = 0.05


class Page:
    """The metrics of a registry on a port of its own, from when it is made until it is closed."""

    def __init__(self, port: int, host: str, registry: CollectorRegistry) -> None:
        """`port`: 0 for any that is free. Raises SpecError."""
        check_port("The metrics' port", port)
        self._port, self._host, self._registry = port, host, registry
        self._serving: tuple[WSGIServer, threading.Thread] | None = None
        self.open()

    @property
    def url(self) -> str:
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/metrics"

    def open(self) -> None:
        """Again, on the same port; nothing if it is open. Raises SpecError."""
        if self._serving is not None:
            return
        try:
            server = self._bound()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise SpecError(f"Metrics cannot be served at {where}: {error}. Choose another port.") from error
        self._port = server.server_port
        thread = threading.Thread(
            target=server.serve_forever, args=(_NOTICES_THE_END_WITHIN,), name="batch-agent-metrics", daemon=True
        )
        thread.start()
        self._serving = server, thread

    def close(self) -> None:
        """The port is free when this returns."""
        if self._serving is not None:
            (server, thread), self._serving = self._serving, None
            server.shutdown()
            server.server_close()
            thread.join()

    def _bound(self) -> WSGIServer:
        family = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0][0]
        kind = type("Server", (_Server,), {"address_family": family})
        return make_server(self._host, self._port, make_wsgi_app(self._registry), kind, _Quiet)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # one that asks and does not read must not hold the end of the run back


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants a line for each scrape."""
