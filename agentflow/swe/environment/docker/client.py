"""Client: the SDK's, whose unix connections close the socket with which they found nobody.

Imported on first use: the SDK is optional.
"""

from __future__ import annotations

import socket
from typing import Any

from docker import APIClient
from docker.transport.unixconn import (
    UnixHTTPAdapter,
    UnixHTTPConnection,
    UnixHTTPConnectionPool,
)


class Client(APIClient):  # type: ignore[misc]  # untyped, like all that follows
    """The SDK's client, with our connections to a unix socket."""

    def mount(self, prefix: str, adapter: Any) -> None:
        """Put ours where the SDK puts its own."""
        if type(adapter) is UnixHTTPAdapter:
            adapter = _Adapter(
                adapter.socket_path, adapter.timeout, max_pool_size=adapter.max_pool_size
            )
        super().mount(prefix, adapter)


class _Adapter(UnixHTTPAdapter):  # type: ignore[misc]
    def get_connection(self, url: str, proxies: Any = None) -> Any:  # noqa: ARG002
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = _Pool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
                self.pools[url] = pool
        return pool


class _Pool(UnixHTTPConnectionPool):  # type: ignore[misc]
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class _Connection(UnixHTTPConnection):  # type: ignore[misc]
    def connect(self) -> None:
        found = socket.socket(socket.AF_UNIX)
        try:
            found.settimeout(self.timeout)
            found.connect(self.unix_socket)
        except BaseException:
            found.close()
            raise
        self.sock = found
