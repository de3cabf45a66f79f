"""Options of the torch backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.config.validators import checked, names, settle
from stepprof.errors import ConfigError

ACTIVITIES = ("cpu", "cuda", "xpu", "mtia", "hpu", "privateuse1")
ACTIVITY_ALIASES = {"gpu": "cuda", "npu": "privateuse1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchOptions:
    """What torch.profiler records.

    >>> TorchOptions(record_shapes=True).with_stack
    False
    """

    activities: Sequence[str] | None = checked(None, names(ACTIVITIES, ACTIVITY_ALIASES))
    """The recorded activities, such as ["cpu", "cuda"]; None: those of the machine."""
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
    """Record every thread of the process; None: yes, unless profile_memory is on, which torch cannot
    combine.
    """
    trace_only: bool | None = None
    """Skip the post-processing that only torch's own tables need; None: wherever torch allows it."""

    def __post_init__(self) -> None:
        """Check every field, and the combinations that torch refuses."""
        settle(self)
        if self.all_threads and self.profile_memory:
            raise ConfigError.at(
                "all_threads",
                True,
                "torch cannot record all threads together with profile_memory; remove one of the two",
            )
