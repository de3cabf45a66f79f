"""Provide other tools with the same purpose, each switched off, as subjects of the timing loop. A
peer that is not installed is omitted and named in the report. The import of a peer may cost seconds
and load many other packages, so it happens only here and on demand.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from benchmarks.timing import Subject

__all__ = ["block_peers", "decorated_peers", "empty_call", "library_versions"]

LIBRARIES = (
    "stepprof",
    "torch",
    "structlog",
    "transitions",
    "isal",
    "verl",
    "nvtx",
    "opentelemetry-api",
    "viztracer",
)


def library_versions() -> dict[str, str | None]:
    """Return the versions of all involved packages; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def empty_call() -> None:
    """The bare call, for comparison with a decorated one."""


class Worker:
    """A worker for verl, which decorates methods of workers that have a profiler. The bare method
    is for comparison.
    """

    profiler: object = None

    def bare(self) -> None:
        """The bare method."""


def _verl_annotate() -> list[Subject]:
    # Ray's usage report would disturb a benchmark.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    profiler_module = import_module("verl.utils.profiler")

    class AnnotatedWorker(Worker):
        @profiler_module.DistProfiler.annotate(role="actor")  # type: ignore[untyped-decorator, unused-ignore]
        def annotated(self) -> None:
            """The bare method with verl's decorator."""

    worker = AnnotatedWorker()
    worker.profiler = profiler_module.DistProfiler(rank=0)
    return [
        Subject("bare method", "worker.bare()", {"worker": worker}),
        Subject(
            "verl DistProfiler.annotate, disabled",
            "worker.annotated()",
            {"worker": worker},
            base="bare method",
        ),
    ]


def _record_function() -> list[Subject]:
    record_function = import_module("torch.profiler").record_function
    return [
        Subject(
            "torch record_function, no profiler",
            "call()",
            {"call": record_function("bench")(empty_call)},
            base="empty call",
        )
    ]


def _nvtx() -> list[Subject]:
    annotate = import_module("nvtx").annotate
    return [
        Subject(
            "nvtx.annotate, no tool", "call()", {"call": annotate("bench")(empty_call)}, base="empty call"
        )
    ]


def _opentelemetry() -> list[Subject]:
    tracer = import_module("opentelemetry.trace").get_tracer("bench")
    decorated = tracer.start_as_current_span("bench")(empty_call)
    return [Subject("OpenTelemetry no-op span", "call()", {"call": decorated}, base="empty call")]


def _viztracer() -> list[Subject]:
    log_sparse = import_module("viztracer").log_sparse
    return [
        Subject(
            "viztracer log_sparse, inactive", "call()", {"call": log_sparse(empty_call)}, base="empty call"
        )
    ]


def decorated_peers() -> tuple[list[Subject], dict[str, str]]:
    """Return decorated functions of every installed peer, and the reasons for missing peers."""
    return _collect(
        {
            "verl": _verl_annotate,
            "torch": _record_function,
            "nvtx": _nvtx,
            "opentelemetry-api": _opentelemetry,
            "viztracer": _viztracer,
        }
    )


def _record_function_block() -> list[Subject]:
    record_function = import_module("torch.profiler").record_function
    return [
        Subject(
            "torch record_function, no profiler",
            'with record_function("bench"):\n    pass',
            {"record_function": record_function},
        )
    ]


def _nvtx_block() -> list[Subject]:
    return [
        Subject(
            "nvtx.annotate, no tool",
            'with nvtx.annotate("bench"):\n    pass',
            {"nvtx": import_module("nvtx")},
        )
    ]


def _opentelemetry_block() -> list[Subject]:
    tracer = import_module("opentelemetry.trace").get_tracer("bench")
    return [
        Subject(
            "OpenTelemetry no-op span",
            'with tracer.start_as_current_span("bench"):\n    pass',
            {"tracer": tracer},
        )
    ]


def _nullcontext_block() -> list[Subject]:
    return [
        Subject(
            "contextlib.nullcontext, one object",
            "with nothing:\n    pass",
            {"nothing": contextlib.nullcontext()},
        )
    ]


def block_peers() -> tuple[list[Subject], dict[str, str]]:
    """Return with-blocks of every installed peer, and the reasons for missing peers."""
    return _collect(
        {
            "contextlib": _nullcontext_block,
            "torch": _record_function_block,
            "nvtx": _nvtx_block,
            "opentelemetry-api": _opentelemetry_block,
        }
    )


def _collect(makers: dict[str, Callable[[], list[Subject]]]) -> tuple[list[Subject], dict[str, str]]:
    subjects: list[Subject] = []
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            subjects.extend(make())
        except ImportError as error:
            absent[name] = str(error)
    return subjects, absent
