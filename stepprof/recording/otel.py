"""Send finished spans to an OpenTelemetry collector, in batches from a bounded queue, on a thread of
its own.

One step is one trace, the same on all ranks: its id follows from the run and the step, without any
propagated context. A window's id follows from its rank and role, and its regions are below it. The
application's own tracing is unaffected: no global provider, no context, no random state.

The SDK's BatchSpanProcessor is not used. It starts a thread in every forked child, discards spans
while a collector is down instead of pausing, and does not bound its shutdown in all supported
versions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stepprof.formatting import install
from stepprof.host import real_time
from stepprof.host.clock import Anchor
from stepprof.instrument.attributes import plain
from stepprof.instrument.scope import DEEPEST, Scope
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from stepprof.config.options.otel import OtelOptions
    from stepprof.instrument.scope import Span

BATCH = 512
"""Maximum spans of one request."""

EVERY_SECONDS = 1.0
"""Seconds between two requests, unless a batch is full before."""

PAUSE_SECONDS = 30.0
"""Pause after a failed request, so that a collector that is down is not asked for each batch."""

MAX_WINDOWS = 1024
"""Maximum number of windows whose end is remembered."""

_MODULES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


def missing() -> str | None:
    """Return which package is missing for sending; None if all are there."""
    for name in _MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its parent is missing
            found = None
        if found is None:
            return f"otel.enabled = true needs {name}, which is not installed: {install('otel')}"
    return None


class Translator:
    """Translates spans to those of OpenTelemetry.

    Args:
        run_id: the run.
        rank: returns the rank of this process.
    """

    def __init__(self, run_id: str, rank: Callable[[], int | str]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._run_id = run_id
        self._rank = rank
        self._ended: dict[tuple[int | None, str | None], int] = {}
        self._known: dict[Scope, int] = {}
        names = {"service.name": "stepprof"} if "OTEL_SERVICE_NAME" not in os.environ else {}
        facts: dict[str, str | int] = {
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            "stepprof.run_id": run_id,
        }
        self._resource = Resource.create({**names, **facts})
        self._library = InstrumentationScope("stepprof")

    def translate(self, span: Span, offset_ns: int) -> ReadableSpan | None:
        """Return a span with absolute times; None for the value of a counter.

        Args:
            span: the span; windows come in the order in which they ended.
            offset_ns: the wall clock minus the clock of the span.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        name, kind, start, end, thread, _task, where, attributes, error = span
        if kind == "counter":
            return None
        step, role, bound = (None, None, None) if where is None else (where.number, where.role, where.bound)
        trace = self._id("trace", step) if step is not None else self._id("rank", self._rank())
        around = where
        number = secrets.randbits(64) or 1
        if kind == "window" and where is not None:
            number = self._window(step, role)
            around = where._outer
            self._note_end(where, number)
        parent = None
        if around is not None and around.number == step and step is not None:
            parent = self._context(trace, self._window_of(around))
        return ReadableSpan(
            name=name,
            context=SpanContext(trace, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)),
            parent=parent if parent is None or parent.span_id != number else None,
            resource=self._resource,
            attributes={
                **{key: _value(value) for key, value in {**(bound or {}), **(attributes or {})}.items()},
                **{
                    f"stepprof.{key}": value
                    for key, value in (("step", step), ("role", role), ("rank", self._rank()), ("kind", kind))
                    if value is not None
                },
                "thread.id": thread,
            },
            status=Status(StatusCode.ERROR if error else StatusCode.UNSET),
            start_time=start + offset_ns,
            end_time=end + offset_ns,
            instrumentation_scope=self._library,
        )

    def _window(self, step: int | None, role: str | None) -> int:
        """Return the id of the window of this step and role that is open, or ends now."""
        return self._id("window", step, role, self._rank(), self._ended.get((step, role), 0)) & (2**64 - 1)

    def _window_of(self, scope: Scope) -> int:
        """Return the id of the window of a scope: one that has ended keeps it."""
        window: Scope | None = scope
        for _ in range(DEEPEST):
            if window is None or window.is_window:
                break
            window = window._outer or window._before
        known = None if window is None else self._known.get(window)
        return self._window(scope.number, scope.role) if known is None else known

    def _note_end(self, window: Scope, number: int) -> None:
        key = window.number, window.role
        for kept in (self._ended, self._known):
            if len(kept) >= MAX_WINDOWS:
                kept.pop(next(iter(kept)))  # type: ignore[call-overload]
        self._ended[key] = self._ended.get(key, 0) + 1
        self._known[window] = number

    def _id(self, *parts: object) -> int:
        text = json.dumps([self._run_id, *parts])
        return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16], "big") or 1

    @staticmethod
    def _context(trace: int, number: int) -> Any:
        from opentelemetry.trace import SpanContext

        return SpanContext(trace, number, is_remote=False)


class Sender:
    """Sends spans to a collector. `take` only appends to a queue.

    Args:
        options: the endpoint and the limits.
        run_id: the run.
        rank: returns the rank of this process.
        exporter: sends batches; None: OTLP over HTTP, as configured.
    """

    name = "sending spans"

    def __init__(
        self,
        options: OtelOptions,
        run_id: str,
        rank: Callable[[], int | str],
        exporter: SpanExporter | None = None,
    ) -> None:
        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=options.endpoint, timeout=options.timeout_seconds)
        self._exporter = exporter
        self._translator = Translator(run_id, rank)
        self._max_queue = options.max_queue
        self._timeout = options.timeout_seconds
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._ending = self._failed = False
        self._paused_until = 0.0
        self.sent = self.dropped = self._under_way = 0
        self._thread = threading.Thread(target=self._run, name="stepprof-otel", daemon=True)
        self._thread.start()

    def take(self, spans: Sequence[Span]) -> None:
        """Queue spans. Drop and count those that do not fit."""
        room = max(self._max_queue - len(self._queue), 0)
        self.dropped += max(len(spans) - room, 0)
        self._queue.extend(spans[:room])
        if len(self._queue) >= BATCH:
            self._wake.set()

    def look(self) -> None:
        """Do nothing: the thread works by itself."""

    def close(self, timeout: float) -> None:
        """Send the rest within the remaining time. Do not wait longer for the thread."""
        self._ending = True
        self._wake.set()
        self._thread.join(min(timeout, self._timeout))
        left = self.dropped + self._under_way + len(self._queue)
        if left:
            logger.warning("otel.dropped", spans=left, sent=self.sent)

    def _run(self) -> None:
        from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value

        # our requests are no spans of the application's
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while True:
            if not self._ending:
                self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            while self._queue and (self._ending or real_time.monotonic() >= self._paused_until):
                if not self._send() and self._ending:
                    break
            if self._ending:
                break
        self._exporter.shutdown()

    def _send(self) -> bool:
        """Send one batch. Return False if that failed; the batch is lost then."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        anchor = Anchor.take()
        offset = anchor.unix_ns - anchor.monotonic_ns
        self._under_way = min(BATCH, len(self._queue))
        batch = [self._queue.popleft() for _ in range(self._under_way)]
        try:
            translated = [
                each for span in batch if (each := self._translator.translate(span, offset)) is not None
            ]
            sent = not translated or self._exporter.export(translated) is SpanExportResult.SUCCESS
            reason = "the collector did not accept the spans"
        except ours(Exception) as error:  # an exporter may raise anything
            sent, reason = False, describe_error(error)
        self._under_way = 0
        if sent:
            self.sent += len(translated)
            self._failed = False
            return True
        self.dropped += len(batch)
        self._paused_until = real_time.monotonic() + PAUSE_SECONDS
        if not self._failed:
            self._failed = True
            logger.warning("otel.failed", reason=reason, spans=len(batch))
        return False


def _value(value: object) -> str | bool | int | float:
    """Return an attribute in a type that OpenTelemetry accepts."""
    kept = plain(value)
    if isinstance(kept, str | bool | float) or (isinstance(kept, int) and kept.bit_length() < 64):
        return kept
    return json.dumps(kept)
