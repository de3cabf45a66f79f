"""Send the spans of a run to an OpenTelemetry collector, by the SDK's own exporter.

One step is one trace, the same on all ranks: its id follows from the run and the step, without any
propagated context. A window's id follows from its process and role, and its regions are below it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.config.options.otel import OtelOptions
from stepprof.follow.below import own
from stepprof.follow.tail import Line, Tail
from stepprof.formatting import install
from stepprof.host import real_time
from stepprof.host.atomic_files import write_atomically
from stepprof.host.plain_files import read_table
from stepprof.log import logger
from stepprof.run.layout import AFTER
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

POSITIONS = "otel.json"
BATCH = 512
"""Maximum spans of one request."""

RETRY_SECONDS = 30.0
"""After a failure, nothing is sent for this long."""

MAX_WINDOWS = 4096
"""Maximum number of windows whose ends are remembered."""

_MODULES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
_Key = tuple[Any, ...]
"""(host, pid, rank, step, role)."""


def missing_for_sending(options: OtelOptions) -> str | None:
    """Return why spans cannot be sent: a missing package, or a wrong variable of the exporter; None: they can."""
    for name in _MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its parent is missing
            found = None
        if found is None:
            return f"{name} is not installed: {install('otel')}"
    try:
        _exporter(options)
    except Exception as error:  # noqa: BLE001 - it reads its own variables, and may refuse them with any exception
        return f"{type(error).__name__}: {error}"
    return None


def _exporter(options: OtelOptions) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=options.endpoint, timeout=options.timeout_seconds)


class Sender:
    """Sends the spans of one run. What was sent is noted after the collector has accepted it.

    Args:
        run: the run directory, which keeps how far they were sent.
        run_id: the run's id.
        options: the endpoint and the limits.
        exporter: sends batches; None: OTLP over HTTP, as configured.
    """

    def __init__(
        self, run: Path, run_id: str, options: OtelOptions, exporter: SpanExporter | None = None
    ) -> None:
        self._exporter = _exporter(options) if exporter is None else exporter
        self._options = options
        self._run = run
        self._file = run / AFTER / POSITIONS
        self._run_id = run_id
        self._tail = Tail(run, self._positions())
        self._resources: dict[tuple[Any, Any], Resource] = {}
        self._ended: dict[_Key, tuple[int, int, int]] = {}
        """How many windows of a key have ended, and start and end of the last one."""
        self._batch: list[ReadableSpan] = []
        self._read: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(1, "stepprof-otel")
        self._sending: Future[int] | None = None
        self._failed_at: float | None = None
        self._refusal: str | None = None
        """What the exporter raised; None: it has logged why it failed."""

    @property
    def has_failed(self) -> bool:
        """Return whether spans are left that the collector did not accept."""
        return self._failed_at is not None

    def look(self) -> None:
        """Send new spans, on another thread, unless the last ones are still being sent.

        Raises:
            OSError: it cannot be noted how far they were sent.
        """
        if self._sending is not None:
            if not self._sending.done():
                return
            sent, self._sending = self._sending.result(), None
            del self._batch[:sent]
            if self._batch and self._failed_at is None:
                logger.warning("otel.failed", spans=len(self._batch), reason=self._refusal)
            self._failed_at = real_time.monotonic() if self._batch else None
            if not self._batch:
                content = {"schema_version": 1, "positions": self._read}
                write_atomically(own(self._run, self._file), json.dumps(content).encode())
        if not self._batch:
            lines = islice(self._tail.read(), self._options.max_queue)
            self._batch = [self._translated(line) for line in lines]
            self._read = dict(self._tail.positions)
        if self._batch and not self._rests:
            self._sending = self._pool.submit(self._send, tuple(self._batch))

    def finish(self) -> None:
        """Send the rest, until the collector does not accept it. Raises OSError."""
        self._failed_at = None
        while not self.has_failed:
            self.look()
            if self._sending is None:
                return
            wait([self._sending])

    def close(self) -> None:
        """End the sending, within the time-out of the exporter."""
        self._exporter.shutdown()
        self._pool.shutdown(cancel_futures=True)

    @property
    def _rests(self) -> bool:
        return self._failed_at is not None and real_time.monotonic() - self._failed_at < RETRY_SECONDS

    def _positions(self) -> dict[str, int]:
        """Return how far an earlier follower has sent each file."""
        try:
            found = read_table(self._file).get("positions")
        except (OSError, ValueError):
            found = {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {str(name): at for name, at in pairs if isinstance(at, int) and at > 0}

    def _send(self, spans: Sequence[ReadableSpan]) -> int:
        """Return how many of the spans the collector has accepted."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        for first in range(0, len(spans), BATCH):
            try:
                result, self._refusal = self._exporter.export(spans[first : first + BATCH]), None
            except Exception as error:  # noqa: BLE001 - as if the collector had not answered: they are sent again
                result, self._refusal = SpanExportResult.FAILURE, describe_error(error)
            if result is not SpanExportResult.SUCCESS:
                return first
        return len(spans)

    def _ids(self, line: Line) -> tuple[int, int | None]:
        """Return the id of a span, and that of the window it lies in: the open one, or the one that ended last."""
        span, header = line.span, line.header
        key = (header.get("host"), header.get("pid"), header.get("rank"), span.get("step"), span.get("role"))
        count, begun, ended = self._ended.get(key, (0, 0, 0))
        if span["kind"] == "window":
            if key not in self._ended and len(self._ended) >= MAX_WINDOWS:
                self._ended.pop(next(iter(self._ended)))
            self._ended[key] = (count + 1, span["start"], span["start"] + span["dur"])
            return self._span_id("window", *key, count), None
        own_id = self._span_id("span", line.file, line.at)
        if span.get("step") is None:
            return own_id, None
        return own_id, self._span_id("window", *key, count - (begun <= span["start"] <= ended))

    def _translated(self, line: Line) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        span, rank = line.span, line.header.get("rank")
        number, parent = self._ids(line)
        step, attrs = span.get("step"), span.get("attrs")
        trace = self._id("trace", step) if step is not None else self._id("rank", rank)
        flags = TraceFlags(TraceFlags.SAMPLED)
        known = {"step": step, "role": span.get("role"), "rank": rank, "kind": span["kind"]}
        return ReadableSpan(
            name=span["name"],
            context=SpanContext(trace, number, is_remote=False, trace_flags=flags),
            parent=None if parent is None else SpanContext(trace, parent, is_remote=False, trace_flags=flags),
            resource=self._resource(line.header),
            attributes={
                **{key: _value(value) for key, value in (attrs if isinstance(attrs, dict) else {}).items()},
                **{f"stepprof.{key}": value for key, value in known.items() if value is not None},
                **({} if span.get("thread") is None else {"thread.id": span["thread"]}),
            },
            status=Status(StatusCode.ERROR if span.get("error") else StatusCode.UNSET),
            start_time=span["start"],
            end_time=span["start"] + span["dur"],
            instrumentation_scope=InstrumentationScope("stepprof"),
        )

    def _resource(self, header: Mapping[str, Any]) -> Resource:
        from opentelemetry.sdk.resources import Resource

        host, pid = header.get("host"), header.get("pid")
        process = host if isinstance(host, str) else None, pid if isinstance(pid, int) else None
        if process not in self._resources:
            names = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "stepprof"}
            facts = {"host.name": process[0], "process.pid": process[1], "stepprof.run_id": self._run_id}
            known = {key: value for key, value in facts.items() if value is not None}
            self._resources[process] = Resource.create({**names, **known})
        return self._resources[process]

    def _span_id(self, *parts: object) -> int:
        return self._id(*parts) & (2**64 - 1) or 1

    def _id(self, *parts: object) -> int:
        text = json.dumps([self._run_id, *parts])
        return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16], "big") or 1


def _value(value: object) -> str | bool | int | float:
    """Return an attribute in a type that OpenTelemetry accepts."""
    if isinstance(value, str | bool | float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return json.dumps(value)
