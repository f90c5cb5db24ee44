"""HTTP server of the metrics for Prometheus. Needs prometheus-client."""

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from ...core.errors import SpecError
from ...core.validation import port as check_port

_POLL_SECONDS = 0.05
"""Interval at which the server checks whether it was closed."""


class MetricsServer:
    """Serves the metrics of a registry on a port, from creation until it is closed."""

    def __init__(self, port: int, host: str, registry: CollectorRegistry) -> None:
        """`port`: 0 picks a free one. Raises SpecError."""
        check_port("The metrics port", port)
        self._port, self._host, self._registry = port, host, registry
        self._serving: tuple[WSGIServer, threading.Thread] | None = None
        self.open()

    @property
    def url(self) -> str:
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/metrics"

    def open(self) -> None:
        """Opens a closed server again on the same port. Raises SpecError."""
        if self._serving is not None:
            return
        try:
            server = self._bound()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise SpecError(f"Metrics cannot be served at {where}: {error}. Choose another port.") from error
        self._port = server.server_port
        thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_SECONDS,), name="batch-agent-metrics", daemon=True
        )
        thread.start()
        self._serving = server, thread

    def close(self) -> None:
        """Closes the server. The port is free when this returns."""
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
    daemon_threads = True  # a client that does not read must not delay the end of the run


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Does not log scrapes."""
