"""Collect durations of many things, pack them into a digest, and sum up those of several digests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.schema import SampleSeconds

MOST_VALUES = 20_000
"""The number of values in a digest. Of more things it has as many quantiles."""


class Distribution(msgspec.Struct, frozen=True):
    """Nanoseconds of several things, packed by `packed`."""

    count: int = 0
    """The number of things."""
    values: bytes = b""


def packed(nanoseconds: npt.NDArray[np.int64]) -> bytes:
    """Return durations sorted and packed; of more than `MOST_VALUES` as many quantiles."""
    values = np.sort(nanoseconds)
    if len(values) > MOST_VALUES:
        values = values[np.linspace(0, len(values) - 1, MOST_VALUES).astype(np.int64)]
    return values.astype("<i8").tobytes()


def distribution_of(nanoseconds: Sequence[float | None]) -> Distribution:
    """Return the distribution of the durations that are known."""
    known = np.array([round(each) for each in nanoseconds if each is not None], np.int64)
    return Distribution(len(known), packed(known))


def seconds_of(parts: Sequence[Distribution], unit: float = 1e9) -> SampleSeconds | None:
    """Return the distribution of several parts together; None: a part has things whose durations are not known, or
    there are none.

    Args:
        parts: what the digests hold.
        unit: what the packed values are divided by: 1 if they are no nanoseconds.
    """
    parts = [part for part in parts if part.count]
    lengths = [np.frombuffer(part.values, "<i8") for part in parts]
    if not parts or not all(map(len, lengths)):
        return None
    weights = np.concatenate(
        [np.full(len(each), part.count / len(each)) for part, each in zip(parts, lengths, strict=True)]
    )
    every = np.concatenate(lengths)
    order = np.argsort(every, kind="stable")
    below, every = np.cumsum(weights[order]), every[order] / unit

    def at(part: float) -> float:
        return float(every[min(int(np.searchsorted(below, part * below[-1])), len(every) - 1)])

    mean = float((every * weights[order]).sum() / below[-1])
    return SampleSeconds(sum(part.count for part in parts), mean, at(0.5), at(0.95), float(every[-1]))
