"""Classify the slices of a source: operators, kernels, communication, regions, windows.

Only this module knows the words of the exporters. It classifies each name, category and track, of
which there are few, and applies that to the slices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.collectives import is_device_communication, is_host_communication
from stepprof.analysis.report.intervals import Indices, Intervals
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.iterations import forward_step
from stepprof.analysis.timeline.model import Args, Source, TrackKind
from stepprof.analysis.timeline.tracks import OURS

Bits = npt.NDArray[np.uint16]
Tests = Mapping[int, Callable[[str], bool]]

_OP, _REGION, _WINDOW, _NOTE, _COPY = (1 << number for number in range(5))
_HOST, _THREAD, _STREAM, _SAMPLE, _ITERATION = (1 << number for number in range(5, 10))
_HOST_CALL, _DEVICE_CALL, _DISPATCH, _STEP, _BY_HOST = (1 << number for number in range(10, 15))

_COMPILER_DATA = re.compile(r"_data: .*\bcompile_id=")
"""Annotations of torch's compiler in which it does not run: they hold its arguments."""
_STEPS = ("ProfilerStep#", "PyTorch Profiler")
_KINDS: Mapping[TrackKind, int] = {
    "thread": _THREAD,
    "stream": _STREAM,
    "sample": _SAMPLE,
    "iterations": _ITERATION,
}
_BY_CATEGORY: Tests = {
    _OP: lambda word: word == "cpu_op",
    _REGION: lambda word: word in ("region", "user_annotation", "stepprof"),
    _WINDOW: lambda word: word == "window",
    # on a stream's row, but not work: annotations of the host that the device shows
    _NOTE: lambda word: word in ("gpu_user_annotation", "overhead"),
    _COPY: lambda word: word in ("gpu_memcpy", "gpu_memset"),
    _DEVICE_CALL: lambda word: word == "communication",  # of an NPU
}
_BY_TRACK: Tests = {
    _HOST: lambda kind: kind in ("thread", "async"),
    **{bit: kind.__eq__ for kind, bit in _KINDS.items()},
}
_BY_NAME: Tests = {
    _HOST_CALL: is_host_communication,
    _DEVICE_CALL: is_device_communication,
    # the call that starts a collective is neither communication nor computation
    _DISPATCH: lambda name: name.startswith(("c10d::", "record_param_comms")),
    _STEP: lambda name: (
        name.startswith(_STEPS) or forward_step(name) is not None or _COMPILER_DATA.search(name) is not None
    ),
    # a library that moves the data itself; what NCCL and HCCL write on threads is only the start of a kernel
    _BY_HOST: lambda name: name.lower().startswith(("gloo:", "mpi:", "ucc:", "oneccl:")),
}


class _Args(msgspec.Struct, gc=False):
    role: object = None
    kind: object = None


class Chosen:
    """Indices into the slices of a source.

    Attributes:
        ops: operators on threads.
        device: everything that ran on streams.
        computation: of the device, or operators without a device; copies are excluded.
        communication: collectives of the device, or of the host without a device.
        calls: communication of the device, and that of threads that move the data themselves.
        regions: regions and annotations, without collectives and the steps of engines and profilers.
        windows: of ``profile_step``.
        dispatches: the calls on threads that start collectives.
        annotations: regions of the host that torch writes on a stream, without the steps of engines and profilers.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        slices = source.slices
        bits = _table(_BY_CATEGORY, source.categories)[slices.category]
        bits |= _table(_BY_TRACK, [track.kind for track in source.tracks])[slices.track]
        bits |= _table(_BY_NAME, source.names)[slices.name]
        # torch_npu writes the profiler's steps among the operators
        self.ops = np.flatnonzero((bits & (_OP | _THREAD | _HOST_CALL | _STEP)) == _OP | _THREAD)
        self.regions = np.flatnonzero((bits & (_REGION | _HOST | _HOST_CALL | _STEP)) == _REGION | _HOST)
        self.windows = np.flatnonzero((bits & (_WINDOW | _HOST)) == _WINDOW | _HOST)
        self.device = np.flatnonzero((bits & (_STREAM | _NOTE)) == _STREAM)
        by_host = np.flatnonzero((bits & (_BY_HOST | _HOST)) == _BY_HOST | _HOST)
        if len(self.device):
            on_device = bits[self.device]
            self.communication = self.device[(on_device & (_DEVICE_CALL | _COPY)) == _DEVICE_CALL]
            self.computation = self.device[(on_device & (_DEVICE_CALL | _COPY)) == 0]
            self.calls = np.concatenate((self.communication, by_host))
        else:
            self.communication = by_host
            self.computation = self.ops[(bits[self.ops] & _DISPATCH) == 0]
            self.calls = self.communication
        self.dispatches = np.flatnonzero((bits & (_DISPATCH | _THREAD)) == _DISPATCH | _THREAD)
        noted = np.array([word == "gpu_user_annotation" for word in source.categories], bool)
        self.annotations = np.flatnonzero(noted[slices.category] & ((bits & _STEP) == 0))
        self._bits = bits

    def when(self, which: Indices) -> Intervals:
        """Return when any of some slices was open."""
        slices = self._source.slices
        return Intervals.union(slices.start[which], slices.start[which] + slices.duration[which])

    def computing_on_threads(self) -> Intervals:
        """Return when threads computed. An operator around a transfer on its own thread does not compute meanwhile."""
        slices = self._source.slices
        track, start = slices.track[self.computation], slices.start[self.computation]
        end = start + slices.duration[self.computation]
        around = np.zeros(len(track), np.bool_)
        parts = []
        for each in distinct(slices.track[self.communication]).tolist():
            mine = self.communication[slices.track[self.communication] == each]
            begun = np.sort(slices.start[mine])
            ended = np.sort(slices.start[mine] + slices.duration[mine])
            there = np.flatnonzero(track == each)
            first = np.searchsorted(begun, start[there])
            has = there[(first < len(begun)) & (ended[np.minimum(first, len(begun) - 1)] <= end[there])]
            around[has] = True
            parts.append(self.when(self.computation[has]) - Intervals.union(begun, ended))
        return Intervals.all_of([self.when(self.computation[~around]), *parts])

    def on(self, kind: TrackKind) -> Indices:
        """Return the slices on tracks of a kind."""
        return np.flatnonzero(self._bits & _KINDS[kind])

    def are_windows(self, which: Indices) -> npt.NDArray[np.bool_]:
        """Return which of some regions are windows that stepprof wrote into a trace."""
        args, slices = self._source.slices.args, self._source.slices
        if args is None or OURS not in self._source.categories:
            return np.zeros(len(which), np.bool_)
        ours = slices.category[which] == self._source.categories.index(OURS)
        return np.array(
            [
                of_ours and _decoded(args[at]).kind == "window"
                for at, of_ours in zip(which.tolist(), ours.tolist(), strict=True)
            ],
            np.bool_,
        )

    def window_roles(self, windows: Indices) -> list[str | None]:
        """Return the role that each window states."""
        args = self._source.slices.args
        return [None] * len(windows) if args is None else [_role(args[at]) for at in windows.tolist()]

    def roles(self, which: Indices) -> list[str | None]:
        """Return the role of each slice.

        It is the role in its args if there is a window of that role (an attribute may have the same
        name), otherwise that of the source.
        """
        args = self._source.slices.args
        if args is None:
            return [self._source.origin.role] * len(which)
        return self.roles_by_args([args[at] for at in which.tolist()])

    def roles_by_args(self, args: Sequence[Args]) -> list[str | None]:
        """Return the roles of slices or marks with these args, as `roles` does."""
        source = self._source
        default = source.origin.role
        if source.origin.kind != "spans":
            return [default] * len(args)
        known = set(self.window_roles(self.windows))
        return [role if not known or role in known else default for role in map(_role, args)]


def _table(tests: Tests, words: Iterable[str]) -> Bits:
    """Return the bits of each word."""
    return np.array([sum(bit for bit, fits in tests.items() if fits(word)) for word in words], np.uint16)


def _role(raw: Args) -> str | None:
    role = _decoded(raw).role
    return role if isinstance(role, str) else None


@lru_cache(maxsize=4096)
def _decoded(raw: Args) -> _Args:
    try:
        return msgspec.json.decode(raw or b"{}", type=_Args)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Args()
