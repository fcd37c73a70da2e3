"""Client: the SDK's, which goes where our own streams go: to the engine itself, by no proxy.

Its unix connections close the socket with which they found nobody, and over TCP it keeps as many
connections as it was told to.
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
from requests.adapters import HTTPAdapter


class Client(APIClient):  # type: ignore[misc]  # untyped, like all that follows
    """The SDK's client, with connections of our own."""

    def __init__(self, *, max_pool_size: int, **settings: Any) -> None:
        super().__init__(max_pool_size=max_pool_size, **settings)
        if not self.base_url.startswith("http+docker:"):
            for prefix in ("http://", "https://"):
                self.mount(prefix, HTTPAdapter(pool_maxsize=max_pool_size))

    def merge_environment_settings(self, *arguments: Any) -> Any:
        """Take no proxy and no certificates from the environment but Docker's own."""
        self.trust_env = False
        return super().merge_environment_settings(*arguments)

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
