"""Address: where an engine listens, and how it is spoken to there: unix socket, TCP, or TLS.

Read once, so that the SDK's connections and our own streams go to the same place with the same
certificates: DOCKER_TLS_VERIFY and DOCKER_CERT_PATH mean what they mean to the SDK.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "/var/run/docker.sock"
"""The system's engine."""
PORT, TLS_PORT = 2375, 2376
"""Where an engine listens unless its address says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an engine listens."""

    unix: str | None = None
    host: str = "localhost"
    port: int = 0
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str, environment: Mapping[str, str]) -> Address:
        """Read `unix:///path` or `tcp://host:port`. Raises ConfigError for anything else."""
        wrong = ConfigError(
            f"docker_host {url!r}: must be unix:///path or tcp://host:port"
            " (over ssh, forward the socket: ssh -L /tmp/d.sock:/run/docker.sock)"
        )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme in {"unix", "http+unix"}:
            return cls(unix=(parts.netloc and f"/{parts.netloc}") + parts.path or SOCKET)
        if parts.scheme in {"tcp", "http", "https"} and parts.hostname and parts.path in {"", "/"}:
            tls = _tls_context(environment)
            if parts.scheme == "https" and tls is None:
                tls = ssl.create_default_context()
            port = port or (PORT if tls is None else TLS_PORT)
            return cls(host=parts.hostname, port=port, tls=tls)
        raise wrong

    @property
    def url(self) -> str:
        """The address as the SDK takes it."""
        if self.unix is not None:
            return f"unix://{self.unix}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tcp' if self.tls is None else 'https'}://{host}:{self.port}"

    def knock(self, *, timeout_s: float) -> None:
        """Ask for a sign of life. Raises OSError with what is wrong, in few and plain words.

        The SDK says it in many; and an engine that refuses our certificate does so only when it is
        asked something.
        """
        connection = http.client.HTTPConnection("engine")
        with self._connect(timeout_s) as connection.sock:
            connection.request("GET", "/_ping", headers={"Connection": "close"})
            try:
                with connection.getresponse() as answer:
                    status, said = answer.status, answer.read(300).decode(errors="replace").strip()
            except http.client.HTTPException as error:
                raise OSError(f"what answers there is no engine: {error!r}") from error
            if status != http.client.OK:
                raise OSError(f"it answers {status}: {said}{self._hint(said)}")

    def _hint(self, said: str) -> str:
        if self.tls is None and "HTTPS" in said:
            return "; set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the folder of certificates"
        return ""

    def _connect(self, timeout_s: float) -> socket.socket:
        if self.unix is None:
            plain = socket.create_connection((self.host, self.port), timeout_s)
        else:
            plain = socket.socket(socket.AF_UNIX)
        try:
            plain.settimeout(timeout_s)
            if self.unix is not None:
                plain.connect(self.unix)
            if self.tls is None:
                return plain
            return self.tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


def _tls_context(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Make what the SDK's `kwargs_from_env` makes, for our own streams. Raises ConfigError."""
    verify = bool(environment.get("DOCKER_TLS_VERIFY"))
    path = environment.get("DOCKER_CERT_PATH")
    if not (verify or path):
        return None
    folder = Path(path) if path else Path.home() / ".docker"
    try:
        context = ssl.create_default_context(cafile=folder / "ca.pem" if verify else None)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except OSError as error:
        raise ConfigError(
            f"DOCKER_CERT_PATH {folder}: ca.pem, cert.pem and key.pem must be there: {error}"
        ) from error
    return context
