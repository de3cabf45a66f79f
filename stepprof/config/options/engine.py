"""Options of attached engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.config.options.torch import ACTIVITIES, ACTIVITY_ALIASES
from stepprof.config.validators import NO_LIMIT, checked, names, settle, whole, whole_numbers
from stepprof.errors import ConfigError

ENGINE_BACKENDS = ("torch", "npu", "nsys", "memory")
DEFAULT_ITERATIONS = 32
"""The default of `max_iterations`. An engine answers no request while it writes its trace: 20 to 50
ms for each forward step of a tiny model on two busy cores.
"""


def _iterations(value: object, key: str) -> int | str:
    if value == NO_LIMIT:
        return NO_LIMIT
    if value in ("all", "unlimited") or (value == 0 and type(value) is int):
        raise ConfigError.at(key, value, 'did you mean "none", for no limit?')
    bound: int = whole(1)(value, key)
    return bound


def _engine_backends(value: object, key: str) -> tuple[str, ...]:
    found: tuple[str, ...] = names(ENGINE_BACKENDS)(value, key)
    clashing = [name for name in found if name != "memory"]
    if len(clashing) > 1 or ("nsys" in found and len(found) > 1):
        problem = f'{" and ".join(found)} cannot record in one engine together; did you mean "{found[0]}"?'
        raise ConfigError.at(key, value, problem)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options of an attached engine's captures."""

    backend: Sequence[str] | str | None = checked(None, _engine_backends)
    """The engine's backend: "torch", "npu", "nsys" or "memory"; None: that of its role, if engines
    support it, else torch.
    """
    activities: Sequence[str] | None = checked(None, names(ACTIVITIES, ACTIVITY_ALIASES, empty=True))
    """The recorded activities, such as ["cpu", "cuda"]; None or []: all that the engine supports."""
    max_iterations: int | str | None = checked(None, _iterations)
    """The engine ends its capture after this many forward steps; "none": at the end of the window;
    None: 32 for a trace of torch's profiler.
    """
    delay_iterations: int = checked(0, whole(0))
    """The capture begins after this many forward steps."""
    with_stack: bool = False
    """Python stacks of each op. In an engine, they make a capture grow without limit."""
    record_shapes: bool = False
    """Shapes of each op's inputs."""
    devices: Sequence[int] = checked((), whole_numbers)
    """Numbers of the NPUs of this host that the engine uses. Only one process records a device at a time. `[]` disables the lease."""
    by_stage: bool = False
    """One file for prefill and one for decode, if the engine supports it."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(self)

    @property
    def bound(self) -> int | None:
        """Return the number of forward steps after which the engine ends its capture; None: at the end
        of the window.

        >>> EngineOptions().bound, EngineOptions(max_iterations="none").bound, EngineOptions(backend="nsys").bound
        (32, None, None)
        """
        if isinstance(self.max_iterations, int):
            return self.max_iterations
        traced = self.backend is None or not {"torch", "npu"}.isdisjoint(self.backend)
        return DEFAULT_ITERATIONS if self.max_iterations is None and traced else None
