"""The way to the upstream that is configured: gRPC to a gateway or a node, HTTP to an OpenAI-compatible endpoint."""

from __future__ import annotations

from edge.config import EdgeConfig
from edge.front.settings import tls
from edge.openai_upstream.client import OpenAiUpstream
from edge.openai_upstream.settings import OpenAiSettings
from wire.grpc_client import InferenceClient
from wire.service import ExchangeObserver

Client = InferenceClient | OpenAiUpstream


def make_upstream(config: EdgeConfig, observer: ExchangeObserver) -> Client | None:
    """None without one. Raises OSError for a key that cannot be read."""
    if not config.upstream:
        return None
    if not config.upstream_url:
        return InferenceClient(config.upstream, tls(config), observer=observer)
    settings = OpenAiSettings(
        url=config.upstream,
        api_key=_key(config),
        model=config.upstream_model,
        logprobs=config.upstream_logprobs,
        capabilities=config.upstream_capabilities,
        ca_file=config.upstream_ca_file,
        certificate_file=config.upstream_certificate_file,
        key_file=config.upstream_key_file,
    )
    return OpenAiUpstream(settings, observer)


def _key(config: EdgeConfig) -> str:
    """A header takes it as it is: printable ASCII, without the line's end that a file has."""
    file = config.upstream_api_key_file
    if file is not None:
        try:
            key = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OSError(f"upstream_api_key_file {file} cannot be read: {error.__class__.__name__}") from None
    else:
        key = "" if config.upstream_api_key is None else config.upstream_api_key.get_secret_value().strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise OSError("the upstream's API key holds spaces or characters that no header takes")
    return key
