"""Certificates of an engine behind TLS, of its clients, and of strangers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


class Certificates:
    """An authority, an engine's certificate, and a folder as DOCKER_CERT_PATH wants it."""

    def __init__(self, folder: Path) -> None:
        """Make them all anew."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(folder / "ca.pem")
        server = self._authority.issue_cert("127.0.0.1")
        server.private_key_pem.write_to_path(folder / "server-key.pem")
        write_chain(server, folder / "server-cert.pem")
        self.client = self.write_client("client", self._authority, trusted=self._authority)

    @property
    def arguments(self) -> str:
        """What makes a daemon ask its clients for certificates of the authority."""
        files = {"cacert": "ca.pem", "cert": "server-cert.pem", "key": "server-key.pem"}
        named = (f"--tls{option}={self._folder}/{file}" for option, file in files.items())
        return " ".join(("--tlsverify", *named))

    def write_stranger(self) -> Path:
        """Return the folder of a client that trusts the engine, which does not know it."""
        return self.write_client("stranger", trustme.CA(), trusted=self._authority)

    def write_doubter(self) -> Path:
        """Return the folder of a client that the engine knows, and that does not trust it."""
        return self.write_client("doubter", self._authority, trusted=trustme.CA())

    def write_client(self, name: str, authority: trustme.CA, *, trusted: trustme.CA) -> Path:
        """Write a client's folder: what it shows, and whom it trusts."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        shown = authority.issue_cert(f"{name}.example")
        trusted.cert_pem.write_to_path(folder / "ca.pem")
        shown.private_key_pem.write_to_path(folder / "key.pem")
        write_chain(shown, folder / "cert.pem")
        return folder


def write_chain(certificate: trustme.LeafCert, path: Path) -> None:
    """Write a certificate and whoever vouches for it."""
    path.write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
