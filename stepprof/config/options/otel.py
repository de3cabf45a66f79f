"""Options for sending spans to an OpenTelemetry collector."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepprof.config.validators import checked, seconds, settle, whole
from stepprof.errors import ConfigError
from stepprof.redaction.secret_places import without_keys, without_secrets


def _endpoint(value: object, key: str) -> str:
    is_url = isinstance(value, str) and re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", value)
    if isinstance(value, str) and is_url and without_keys(without_secrets(value)) == value:
        return value
    scheme, found, _ = str(value).partition("://")
    shown = f"{scheme}://…" if found else value  # a secret is not shown in the error either
    problem = (
        'expected a URL without a password or a query, such as "http://127.0.0.1:4318/v1/traces"; '
        "keys belong into $OTEL_EXPORTER_OTLP_HEADERS: the configuration is written into the run"
    )
    raise ConfigError.at(key, shown, problem)


@dataclass(frozen=True, kw_only=True, slots=True)
class OtelOptions:
    """How finished spans are sent to an OpenTelemetry collector.

    Headers, certificates and compression are set by the exporter's own $OTEL_EXPORTER_OTLP_* variables, because the configuration is written into the run.
    """

    enabled: bool = False
    """Send windows, regions and marks of every step by OTLP over HTTP; needs the extra `otel`, and spans."""
    endpoint: str | None = checked(None, _endpoint)
    """The URL, such as "http://127.0.0.1:4318/v1/traces"; None: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    $OTEL_EXPORTER_OTLP_ENDPOINT, else this host.
    """
    max_queue: int = checked(20_000, whole(1))
    """Maximum number of spans in memory; the next ones are read when the collector has accepted these."""
    timeout_seconds: float = checked(5.0, seconds)
    """Timeout of one request, with its retries."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(self)
