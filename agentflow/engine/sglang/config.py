"""SglangConfig: where the servers are and how long to wait for each thing they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agentflow.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds to wait; all but `connect_s` and `admin_s` stand still while the engine is paused."""

    connect_s: float = 10.0
    """TCP and TLS handshake."""
    first_token_s: float = 600.0
    """From sending a request to its first token: queueing and prefill."""
    between_tokens_s: float = 120.0
    """Longest silence of a stream that has begun."""
    abort_s: float = 30.0
    """From asking for an abort to the end of the request."""
    admin_s: float = 30.0
    """Answers to loads, health, information and flush calls."""
    pause_s: float = 120.0
    """Answer to a pause: in mode `abort` the server waits for its last request."""
    update_s: float = 1800.0
    """Answer to a weight update."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            seconds = getattr(self, name)
            if not seconds > 0:
                raise ConfigError(f"{name}: {seconds!r} must be a number of seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangConfig:
    """One engine: one or several replicas of one model."""

    urls: tuple[str, ...]
    """`http://host:port` of each replica, or of one router in front of them."""
    api_key: str | None = field(default=None, repr=False)
    """Sent as a bearer token, for servers started with `--api-key`."""
    vocab_size: int | None = None
    """Rows of the embedding; None reads `config.json` beside the weights the server names."""
    ca_file: str | None = None
    """PEM bundle to trust for https; None trusts the system's."""
    stream_interval: int | None = None
    """Tokens per stream event; None leaves it to the server (`--stream-interval`)."""
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("urls: () must name at least one server, as http://host:port")
        for url in self.urls:
            _check_url(url)
        if len(set(self.urls)) < len(self.urls):
            raise ConfigError(f"urls: {self.urls!r} must name each server once")
        key = self.api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
            raise ConfigError("api_key: must be printable ASCII without blanks around it")
        for name in ("vocab_size", "stream_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: {value!r} must be at least 1")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    try:
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or none below 65,536
        named = False
    extra = parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in {"http", "https"} or not named or extra:
        raise ConfigError(f"urls: {url!r} must look like http://host:port or https://host:port")
