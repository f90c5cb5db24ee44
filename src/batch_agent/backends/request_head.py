"""The head of an HTTP/1.1 request, with the headers that all requests to a server share made into bytes once."""

from yarl import URL

from .wire import Headers


class RequestHeads:
    """Raises ValueError for a header that would end a line early."""

    def __init__(self, headers: Headers) -> None:
        self._shared = headers
        self._standing = _lines(headers)
        self._firsts: dict[tuple[str, URL], bytes] = {}

    def bytes_of(self, method: str, url: URL, headers: Headers | None) -> bytes:
        """Without the empty line at its end."""
        first = self._firsts.get((method, url))
        if first is None:
            line = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
            first = self._firsts[method, url] = line.encode("ascii")
        return first + (_lines(self.with_own(headers)) if headers else self._standing)

    def with_own(self, headers: Headers) -> Headers:
        """All headers of one request, its own before the shared ones."""
        own = {name.lower() for name in headers}
        return {**{name: value for name, value in self._shared.items() if name.lower() not in own}, **headers}


def _lines(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header has a line end in it")
    return lines.encode("latin-1", errors="replace")
