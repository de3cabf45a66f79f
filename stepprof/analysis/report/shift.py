"""Move a digest to another clock: shift all its times, and record its new alignment."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from stepprof.analysis.report.digest import Digest, MemoryPeak, Window
from stepprof.analysis.report.rollout import Batches, Samples
from stepprof.analysis.timeline.model import Alignment

__all__ = ["moved"]

_Curve = TypeVar("_Curve", Batches, Samples)


def moved(digest: Digest, offset_ns: int, alignment: Alignment) -> Digest:
    """Return the digest with all its times earlier by `offset_ns`.

    Args:
        digest: to move.
        offset_ns: nanoseconds to subtract.
        alignment: the new alignment of its source.
    """
    replace = msgspec.structs.replace

    def at(time: int) -> int:
        return time - offset_ns

    def packed(times: bytes) -> bytes:
        return (np.frombuffer(times, "<i8") - offset_ns).astype("<i8").tobytes()

    def curve(values: _Curve | None) -> _Curve | None:
        return None if values is None else replace(values, time=packed(values.time))

    nest = digest.nest
    if nest is not None:
        nest = replace(
            nest,
            start=packed(nest.start),
            end=packed(nest.end),
            beside=packed(nest.beside),
            places=[replace(place, total=packed(place.total)) for place in nest.places],
        )
    batches = curve(digest.batches)
    if batches is not None:
        batches = replace(batches, surplus=packed(batches.surplus))
    samples = curve(digest.samples)
    if samples is not None:
        longest = [replace(each, start=at(each.start), end=at(each.end)) for each in samples.longest]
        samples = replace(samples, longest=longest)
    return replace(
        digest,
        alignment=alignment,
        start=None if digest.start is None else at(digest.start),
        end=None if digest.end is None else at(digest.end),
        windows=[Window(each.role, at(each.start), at(each.end), each.ends) for each in digest.windows],
        regions=[
            replace(each, first=at(each.first), last=at(each.last), when=packed(each.when))
            for each in digest.regions
        ],
        nest=nest,
        works=[
            replace(each, computing=packed(each.computing), communicating=packed(each.communicating))
            for each in digest.works
        ],
        calls=replace(digest.calls, start=packed(digest.calls.start)),
        batches=batches,
        samples=samples,
        allocating=packed(digest.allocating),
        memory=[MemoryPeak(each.device, each.peak, at(each.at)) for each in digest.memory],
    )
