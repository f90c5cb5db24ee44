"""Selection of the transport for a server: plain HTTP directly, TLS and proxies through aiohttp."""

from yarl import URL

from .proxy import proxy_of
from .transport import Headers, Transport


def open_transport(root: URL, headers: Headers, *, keep_alive: bool = True) -> Transport:
    """A transport without limits on connections (slots bound them) and on waiting (the turn timeout does). Raises
    BackendError for a proxy in the environment that cannot be used."""
    all_headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
    proxy = proxy_of(root)
    if root.scheme == "http" and proxy is None:
        from .connection_pool import ConnectionPool

        return ConnectionPool(root, all_headers, keep_alive=keep_alive)
    from .aiohttp_transport import AiohttpTransport  # importing aiohttp takes longer than importing all the rest

    return AiohttpTransport(all_headers, keep_alive=keep_alive, proxy=proxy)
