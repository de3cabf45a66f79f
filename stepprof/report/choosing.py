"""Which slices of a source are what: operators, kernels, communication, regions, windows. The one place that knows the words of the exporters.

The choice is made per name, category and track, of which there are few, and then spread over the slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.report.collectives import is_device_communication, is_host_communication
from stepprof.timeline.model import Source, TrackKind

__all__ = ["Chosen", "Indices"]

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

_OPS = frozenset({"cpu_op"})
_REGIONS = frozenset({"region", "user_annotation", "stepprof"})
_WINDOWS = frozenset({"window"})
_NOTES = frozenset({"gpu_user_annotation", "overhead"})
"""On a stream's row without being work: where annotations of the host show on the device."""
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_DISPATCH = "c10d::"
"""The call that starts a collective: neither communication nor computation."""
_STEPS = ("ProfilerStep#", "execute_context_", "step[", "PyTorch Profiler")


class _Args(msgspec.Struct, gc=False):
    role: object = None


class Chosen:
    """Indices into the slices of a source.

    Attributes:
        ops: operators on threads.
        device: whatever ran on streams.
        computation: of the device where there is one, else operators; without copies of a device.
        communication: collectives of the device where there is one, else of the host.
        regions: regions and annotations, without collectives and the steps of engines and profilers.
        windows: of ``profile_step``.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        host = self._on("thread") | self._on("async")
        streams = self._on("stream")
        host_calls = self._by_name(is_host_communication) & host
        steps = self._by_name(lambda name: name.startswith(_STEPS))
        self.ops = np.flatnonzero(self._by_category(_OPS) & self._on("thread") & ~host_calls)
        self.regions = np.flatnonzero(self._by_category(_REGIONS) & host & ~host_calls & ~steps)
        self.windows = np.flatnonzero(self._by_category(_WINDOWS) & host)
        self.device = np.flatnonzero(streams & ~self._by_category(_NOTES))
        if len(self.device):
            calls = self._by_name(is_device_communication)[self.device]
            copies = self._by_category(_COPIES)[self.device]
            self.communication = self.device[calls & ~copies]
            self.computation = self.device[~calls & ~copies]
        else:
            dispatch = self._by_name(lambda name: name.startswith(_DISPATCH))
            self.communication = np.flatnonzero(host_calls)
            self.computation = self.ops[~dispatch[self.ops]]

    def on(self, kind: TrackKind) -> Indices:
        """The slices on tracks of a kind."""
        return np.flatnonzero(self._on(kind))

    def roles(self, which: Indices) -> list[str | None]:
        """The role of each of some slices: what its args say where there is a window of that role (an attribute may be called so too), else that of the source."""
        args = self._source.slices.args
        default = self._source.origin.role
        if args is None:
            return [default] * len(which)
        stated = [_role(args[at]) for at in self.windows.tolist()]
        roles = stated if which is self.windows else [_role(args[at]) for at in which.tolist()]
        known = set(stated)
        return [role if not known or role in known else default for role in roles]

    def _on(self, kind: TrackKind) -> Flags:
        return _spread([track.kind == kind for track in self._source.tracks], self._source.slices.track)

    def _by_category(self, words: Iterable[str]) -> Flags:
        return _spread([word in words for word in self._source.categories], self._source.slices.category)

    def _by_name(self, fits: Callable[[str], bool]) -> Flags:
        return _spread([fits(name) for name in self._source.names], self._source.slices.name)


def _spread(flags: list[bool], indices: npt.NDArray[np.int32]) -> Flags:
    return np.array(flags, bool)[indices] if len(indices) else np.zeros(0, bool)


@lru_cache(maxsize=4096)
def _role(raw: bytes | None) -> str | None:
    try:
        role = msgspec.json.decode(raw or b"{}", type=_Args).role
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return role if isinstance(role, str) else None
