"""Write the descriptors of a Perfetto trace: its clocks, and the tree of its tracks.

Only this module knows that Perfetto orders processes by their number of events, and tracks inside a
track by the file. So the timeline is one track, its sources are tracks in it, and so on.
"""

from __future__ import annotations

from stepprof.analysis.timeline.protobuf import bytes_field, varint_field

ROOT, ABOUT = 1, 2
"""The track around all others, and that of the sources."""
FIRST_OWN = 3
"""Tracks from this number on belong to sources."""
_CLOCK = 64  # the first id that is local to a sequence
_REALTIME, _BOOTTIME = 1, 6


def head(title: str, description: str, start_unix_ns: int) -> bytes:
    """Return the first packets of a timeline: its name, and that its clock counts nanoseconds since
    1970.

    Args:
        title: name of the track around all others.
        description: how the sources were placed on one clock.
        start_unix_ns: any moment of the timeline.
    """
    clocks = b"".join(
        bytes_field(1, varint_field(1, clock) + varint_field(2, start_unix_ns))
        for clock in (_BOOTTIME, _REALTIME)
    )
    return b"".join(
        (
            packet(1, varint_field(13, 1) + bytes_field(6, clocks)),
            packet(1, track_descriptor(ROOT, title, ordered=True, description=description)),
            packet(1, track_descriptor(ABOUT, "sources", parent=ROOT, order=2**30)),
        )
    )


def own_clock(base: int) -> bytes:
    """Return the first packet of a sequence with times relative to `base` [ns]."""
    clocks = bytes_field(1, varint_field(1, _CLOCK) + varint_field(2, 0)) + bytes_field(
        1, varint_field(1, _BOOTTIME) + varint_field(2, base)
    )
    return varint_field(13, 1) + bytes_field(6, clocks) + bytes_field(59, varint_field(58, _CLOCK))


def packet(sequence: int, fields: bytes) -> bytes:
    """Return a packet of a sequence, which is of one source or of the timeline itself."""
    return bytes_field(1, varint_field(10, sequence) + fields)


def track_descriptor(
    uuid: int,
    name: str,
    *,
    parent: int = 0,
    order: int = 0,
    ordered: bool = False,
    counter: bool = False,
    lanes_of: int = 0,
    description: str = "",
) -> bytes:
    """Return a TrackDescriptor.

    Siblings are drawn as one row only if `lanes_of` requests it; Perfetto would merge tracks of
    equal names.
    """
    fields = [varint_field(1, uuid), bytes_field(2, name), varint_field(12, order)]
    if parent:
        fields.append(varint_field(5, parent))
    if ordered:
        fields.append(varint_field(11, 3))
    if counter:
        fields.append(bytes_field(8, b""))
    if description:
        fields.append(bytes_field(14, description))
    fields.append(varint_field(15, 3) + varint_field(17, lanes_of) if lanes_of else varint_field(15, 2))
    return bytes_field(60, b"".join(fields))
