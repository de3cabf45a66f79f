"""Determine when a step and its roles started, from the manifest or else from the events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepprof.analysis.timeline.find import Found
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.manifest_sources import process_of
from stepprof.errors import ConfigError


def start_of(found: Found, assume: Mapping[str, int] | None = None) -> int:
    """Return the time that `--from` and `--to` count from [ns since 1970, on the common clock].

    It is the start of the first window of the step; without a manifest, the first event.

    Raises:
        ConfigError: no source has a time.
    """
    starts = [start for _, start in _windows(found)]
    if not starts:
        extents = (load(each, args=False, assume=assume).extent for each in found.inputs)
        starts = [extent[0] for extent in extents if extent is not None]
    if not starts:
        raise ConfigError("--from and --to: no source has a time; omit both options")
    return min(starts)


def role_starts(found: Found) -> dict[str | None, int]:
    """Return when the first window of each role started."""
    starts: dict[str | None, int] = {}
    for role, start in _windows(found):
        starts[role] = min(start, starts.get(role, start))
    return starts


def _windows(found: Found) -> Iterator[tuple[str | None, int]]:
    """Yield the role and start of each window, on the common clock if the host has a source."""
    offsets: dict[object, int] = {}
    for each in found.inputs:
        offsets.setdefault(each.origin.host, each.alignment.offset_ns)
        offsets[each.origin.process] = each.alignment.offset_ns
    for manifest in found.manifests:
        for window in manifest["windows"]:
            if window["start_unix_ns"] is not None:
                offset = offsets.get(process_of(window), offsets.get(window["host"], 0))
                yield window["role"], int(window["start_unix_ns"]) - offset
