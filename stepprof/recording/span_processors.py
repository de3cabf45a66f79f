"""Readers of the spans of every step, on the background thread: the watch and the OpenTelemetry
sender.

They are imported only if configured. A reader that fails is logged and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from stepprof.config.options.otel import OtelOptions
from stepprof.config.options.watch import WatchOptions
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.recording.session_port import RunningSession


class Reader(Protocol):
    """Receives spans as they are drained. It must not block."""

    name: str

    def take(self, spans: Sequence[Span]) -> None:
        """Receive finished spans."""
        ...

    def look(self) -> None:
        """Do the work of a round, after its spans."""
        ...

    def close(self, timeout: float) -> None:
        """End within `timeout` seconds: no more spans follow."""
        ...


class Readers:
    """The readers. A failure of one affects neither the others nor the round."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = list(readers)

    def take(self, spans: Sequence[Span]) -> None:
        """Pass finished spans on."""
        self._each(lambda reader: reader.take(spans))

    def look(self) -> None:
        """End a round."""
        self._each(lambda reader: reader.look())

    def close(self, timeout: float) -> None:
        """End all readers."""
        self._each(lambda reader: reader.close(timeout))

    def _each(self, act: Callable[[Reader], None]) -> None:
        for reader in list(self._readers):
            try:
                act(reader)
            except ours(Exception) as error:  # it must not affect the spans and the other readers
                self._readers.remove(reader)
                logger.warning("reader.failed", reader=reader.name, reason=describe_error(error))


def readers_of(session: RunningSession) -> Readers:
    """Return the readers of a session's configuration."""
    readers: list[Reader] = []
    watch, otel = session.config.watch, session.config.otel
    if isinstance(watch, WatchOptions) and watch.enabled and session.path is not None:
        from stepprof.recording.control.auto_capture import AutoCaptures
        from stepprof.recording.watch.watcher import Watcher

        selector = session.selector
        for policy in selector.policies() if watch.max_captures else ():
            if policy.enabled:  # slow imports now: in the middle of training they would slow steps down
                session.local.capturer.backends.probe(policy)
        captures = AutoCaptures(session.path, watch, selector, session.local.capturer.backends.probe)
        if isinstance(watch.lag_seconds, float):
            from stepprof.recording.watch.stragglers import LagFinder

            readers.append(
                LagFinder(session.path, watch.lag_seconds, lambda: session.rank, session.recorder, captures)
            )
        readers.append(Watcher(watch, session.recorder, selector.was_entered, captures, lambda: session.rank))
    if isinstance(otel, OtelOptions) and otel.enabled:
        from stepprof.recording.otel import Sender, missing

        problem = missing()
        try:
            if problem is None:
                readers.append(Sender(otel, str(session.run_id), lambda: session.rank))
        except ours(
            Exception
        ) as error:  # the exporter reads its own variables, and may refuse them with any exception
            problem = describe_error(error)
        if problem is not None:
            logger.warning("otel.disabled", reason=problem)
    return Readers(readers)
