"""The one factory for channels and servers: message size, keepalive, TLS, identity.

Every tier uses it, so that both ends agree: a client pings no more often than a server allows, and
messages have one size limit. A peer that pings too often is cut off by gRPC (ENHANCE_YOUR_CALM), so
the two figures below belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

MAX_MESSAGE_BYTES = 8 << 20
CLIENT_PING_INTERVAL_MS = 30_000
SERVER_MIN_PING_INTERVAL_MS = 10_000
PING_TIMEOUT_MS = 10_000
MAX_RECONNECT_BACKOFF_MS = 2_000
# A connection holds a file descriptor: one that says nothing at first, and one that asks nothing for long, is let go.
HANDSHAKE_MS = 20_000
IDLE_MS = 600_000

Metadata = tuple[tuple[str, str], ...]


class Identity(Protocol):
    """Says who calls: metadata added to every call of a client."""

    def metadata(self) -> Metadata: ...


class Authenticator(Protocol):
    """Checks who calls. Raises Unauthenticated or PermissionDenied."""

    def authenticate(self, method: str, metadata: Metadata) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Trust for a client: a CA bundle, and for mutual TLS its own certificate."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate; with `client_ca_file` callers must present one as well."""

    certificate_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        pair = (self.key_file.read_bytes(), self.certificate_file.read_bytes())
        return grpc.ssl_server_credentials(
            [pair], _read(self.client_ca_file), require_client_auth=self.client_ca_file is not None
        )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


_SIZES: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]


def open_channel(target: str, tls: ClientTls | None = None) -> grpc.aio.Channel:
    """A channel to `target` (host:port or unix:PATH). Connects on first use and reconnects by itself."""
    options = [
        *_SIZES,
        ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
        # Channels to the same target must not share a connection: each measures its own link.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, tls.credentials(), options=options)


def open_server(interceptors: Sequence[grpc.aio.ServerInterceptor] = ()) -> grpc.aio.Server:
    """A server without ports or services yet: see wire.grpc_server."""
    options = [
        *_SIZES,
        ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", SERVER_MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]
    return grpc.aio.server(interceptors=list(interceptors), options=options)


def bind(server: grpc.aio.Server, address: str, tls: ServerTls | None = None) -> int:
    """Binds `address` (host:port, or unix:PATH) and returns the port. Raises OSError when it is taken."""
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, tls.credentials())
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}; is another process using it?") from error
