"""S3-compatible server (moto) on a local port, with faults: busy answers, slow ones, and answers that are lost."""

import logging
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

Fault = Literal["busy", "lost", "slow"] | None
Rule = Callable[[str, str], Fault]
"""Decides by the method and the path of a request."""

_BUSY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
_SLOW_SECONDS = 0.3


class S3Server:
    """Server whose faults can be changed while it runs. `requests` has the method and path of all requests."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.rule: Rule = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3-server", daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def make_bucket(self, name: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT"), timeout=30):
            pass

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        fault = self.rule(method, path)
        if fault == "busy":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))])
            return [_BUSY]
        if fault == "slow":
            time.sleep(_SLOW_SECONDS)
        answer: Iterable[bytes] = self._app(environ, start_response)
        if fault == "lost":
            b"".join(answer)  # the request has its effect
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.close()
