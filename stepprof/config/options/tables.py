"""The tables of options: what a backend, an engine or a schedule can be told.

One frozen dataclass per table of the configuration, checked on construction. The defaults are the cheap ones; whatever makes a capture heavier is off until asked for.
None means: left to what is there at run time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.config.validators import (
    NO_LIMIT,
    byte_size,
    flag,
    limit,
    more_than,
    names,
    role_name,
    seconds,
    settle,
    texts,
    whole,
    whole_numbers,
)
from stepprof.errors import ConfigError

ACTIVITIES = ("cpu", "cuda", "xpu", "mtia", "hpu", "privateuse1")
ENGINE_BACKENDS = ("torch", "npu", "nsys", "memory")
DEFAULT_ITERATIONS = 32
"""An engine answers no request while it writes its trace: 20 to 50 ms for each forward step of a tiny model on two busy cores."""
LEAST_LAG_SECONDS = 15.0
_ACTIVITY_ALIASES = {"gpu": "cuda", "npu": "privateuse1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchOptions:
    """What torch.profiler records.

    >>> TorchOptions(record_shapes=True).with_stack
    False
    """

    activities: Sequence[str] | None = None
    """Which activities to record, such as ["cpu", "cuda"]; None: those that are there."""
    with_stack: bool = False
    """Python stacks of each op; at most 4.3 kB of trace per op instead of 1.3 kB, and a much slower stop."""
    record_shapes: bool = False
    """Shapes of each op's inputs."""
    profile_memory: bool = False
    """Allocations and frees; binds the capture to the thread that began it."""
    with_flops: bool = False
    """An estimate of the floating-point operations of each op."""
    with_modules: bool = False
    """The module hierarchy of each op."""
    all_threads: bool | None = None
    """Record every thread of the process; None: yes, unless profile_memory is on, with which torch cannot."""
    trace_only: bool | None = None
    """Skip the post-processing that only torch's own tables need; None: wherever torch allows it."""

    def __post_init__(self) -> None:
        """Check every field, and the combinations that torch refuses."""
        settle(
            self,
            {
                "activities": names(ACTIVITIES, _ACTIVITY_ALIASES),
                **dict.fromkeys(
                    ("with_stack", "record_shapes", "profile_memory", "with_flops", "with_modules"), flag
                ),
                "all_threads": flag,
                "trace_only": flag,
            },
        )
        if self.all_threads and self.profile_memory:
            raise ConfigError.at(
                "all_threads",
                True,
                "torch cannot record all threads together with profile_memory; leave one of the two out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What an attached engine records of itself."""

    backend: Sequence[str] | str | None = None
    """What the engine records with, out of "torch", "npu", "nsys" and "memory"; None: what its role's backend says, of these; else torch."""
    activities: Sequence[str] | None = None
    """Which activities the engine records, such as ["cpu", "cuda"]; None or []: those that it has."""
    max_iterations: int | str | None = None
    """After how many forward steps the engine ends its capture by itself; "none": when the window ends; None: 32 for a trace of torch's profiler."""
    delay_iterations: int = 0
    """How many forward steps the engine lets pass before it begins."""
    with_stack: bool = False
    """Python stacks of each op; in an engine this is what makes a capture grow without bound."""
    record_shapes: bool = False
    """Shapes of each op's inputs."""
    devices: Sequence[int] = ()
    """Which NPUs of this process's host the engine uses, by their numbers: while it records nobody else does, and the other way round; []: nobody is asked."""
    by_stage: bool = False
    """One file for prefill and one for decode, where the engine can."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(
            self,
            {
                "backend": _engine_backends,
                "activities": names(ACTIVITIES, _ACTIVITY_ALIASES, empty=True),
                "max_iterations": _iterations,
                "delay_iterations": whole(0),
                "devices": whole_numbers,
                **dict.fromkeys(("with_stack", "record_shapes", "by_stage"), flag),
            },
        )

    @property
    def bound(self) -> int | None:
        """After how many forward steps the engine ends its capture by itself; None: when the window ends.

        >>> EngineOptions().bound, EngineOptions(max_iterations="none").bound, EngineOptions(backend="nsys").bound
        (32, None, None)
        """
        if isinstance(self.max_iterations, int):
            return self.max_iterations
        traced = self.backend is None or not {"torch", "npu"}.isdisjoint(self.backend)
        return DEFAULT_ITERATIONS if self.max_iterations is None and traced else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Which entries of a region inside a window are captured: skip, then ``repeat`` rounds of wait, warmup and active entries.

    >>> Schedule(region="mini_batch", active=2).repeat
    1
    """

    region: str
    """The name of the region whose entries are counted."""
    skip_first: int = 0
    """How many entries pass once, before the first round."""
    wait: int = 0
    """How many entries pass in each round."""
    warmup: int = 0
    """How many entries are then run armed, without a record."""
    active: int = 1
    """How many entries are then recorded."""
    repeat: int = 1
    """How many rounds there are."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(
            self,
            {
                "region": _one_name,
                **dict.fromkeys(("skip_first", "wait", "warmup"), whole(0)),
                **dict.fromkeys(("active", "repeat"), whole(1)),
            },
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """How a process watches itself: what counts as unusual, and how often that may be recorded.

    >>> WatchOptions(enabled=True, factor=3).max_captures
    3
    """

    enabled: bool = False
    """Watch steps, regions and memory, by the spans."""
    factor: float = 2.0
    """Slow is what takes at least so many times the median."""
    spread: float = 8.0
    """And lies at least so many deviations above it, as the history varies by itself."""
    min_seconds: float = 0.5
    """And takes at least so many seconds more than the median."""
    window: int = 100
    """Over how many of the last steps the history goes; for as many nothing more is told after something was."""
    min_steps: int = 20
    """How many steps the history must have before anything is unusual."""
    skip_first: int = 5
    """How many steps pass at first without a trace in it: compilation, caches, autotuning."""
    roles: Sequence[str] | None = None
    """Which roles are watched; None: all, and the whole step."""
    regions: Sequence[str] | None = None
    """Which regions are watched; None: all; []: none, only the windows."""
    memory_growth: int | str = "4GiB"
    """By how much the memory that never comes back may grow, on the host and on the device each; "none": it is not watched."""
    lag_seconds: float | str = 60.0
    """How far a rank may be behind the median of all, in steps times what a step takes; "none": nobody looks."""
    max_captures: int = 3
    """How many captures watching may make in the whole run, all ranks together; 0: it only tells."""
    max_bytes: int | str = "2GiB"
    """How many bytes these captures may write in the whole run; "none" for no limit."""

    def __post_init__(self) -> None:
        """Check every field, and that a history can become as long as it must be."""
        settle(
            self,
            {
                "enabled": flag,
                "factor": more_than(1, 2),
                "spread": more_than(0, 8),
                "min_seconds": seconds,
                **dict.fromkeys(("window", "min_steps"), whole(2)),
                **dict.fromkeys(("skip_first", "max_captures"), whole(0)),
                "roles": _roles,
                "regions": lambda value, key: () if value in ((), []) else texts(value, key),
                **dict.fromkeys(("memory_growth", "max_bytes"), limit(byte_size)),
                "lag_seconds": limit(seconds),
            },
        )
        if isinstance(self.lag_seconds, float) and self.lag_seconds < LEAST_LAG_SECONDS:
            problem = f"what ranks publish is some seconds old; the nearest is {LEAST_LAG_SECONDS:g}"
            raise ConfigError.at("lag_seconds", self.lag_seconds, problem)
        if self.min_steps > self.window:
            problem = f"longer than the history, whose window is {self.window}; the nearest is {self.window}"
            raise ConfigError.at("min_steps", self.min_steps, problem)


@dataclass(frozen=True, kw_only=True, slots=True)
class OtelOptions:
    """How finished spans are sent to an OpenTelemetry collector.

    Headers, certificates and compression are set by the exporter's own $OTEL_EXPORTER_OTLP_* variables, because the configuration is written into the run.
    """

    enabled: bool = False
    """Send windows, regions and marks of every step by OTLP over HTTP; needs stepprof[otel], and spans."""
    endpoint: str | None = None
    """Where to, such as "http://127.0.0.1:4318/v1/traces"; None: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, $OTEL_EXPORTER_OTLP_ENDPOINT, else this host."""
    max_queue: int = 20_000
    """How many spans wait at most; what comes beyond is dropped and counted."""
    timeout_seconds: float = 5.0
    """How long one request may take, and the last ones at the end of the run together."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(
            self,
            {"enabled": flag, "endpoint": _endpoint, "max_queue": whole(1), "timeout_seconds": seconds},
        )


def _iterations(value: object, key: str) -> int | str:
    if value == NO_LIMIT:
        return NO_LIMIT
    if value in ("all", "unlimited") or (value == 0 and type(value) is int):
        raise ConfigError.at(key, value, 'did you mean "none", for no bound?')
    bound: int = whole(1)(value, key)
    return bound


def _engine_backends(value: object, key: str) -> tuple[str, ...]:
    found: tuple[str, ...] = names(ENGINE_BACKENDS)(value, key)
    clashing = [name for name in found if name != "memory"]
    if len(clashing) > 1 or ("nsys" in found and len(found) > 1):
        problem = f'{" and ".join(found)} cannot record in one engine together; did you mean "{found[0]}"?'
        raise ConfigError.at(key, value, problem)
    return found


def _roles(value: object, key: str) -> tuple[str, ...]:
    return tuple(role_name(role, key) for role in texts(value, key))


def _endpoint(value: object, key: str) -> str:
    if isinstance(value, str) and re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value):
        return value
    problem = 'expected a URL without a password, such as "http://127.0.0.1:4318/v1/traces"'
    raise ConfigError.at(key, value, problem)


def _one_name(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError.at(key, value, 'expected the name of a region, such as "mini_batch"')
    return texts(value, key)[0]
