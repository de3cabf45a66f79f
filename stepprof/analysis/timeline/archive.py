"""Write an archive of a step: its traces as they were recorded, and the manifest that places them on one clock.

Perfetto reads such an archive from version 58 on
(https://perfetto.dev/docs/reference/perfetto-manifest). What it cannot read itself (spans, databases
of torch_npu, damaged traces) is in the archive as Chrome JSON that stepprof writes.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepprof.analysis.timeline.archive_manifest import MANIFEST, Entry, entry, manifest, utf8
from stepprof.analysis.timeline.clocks import describe, never_compared, worst_error
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.inflate import Limits, blocks
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.merge import Merged, merge, nothing, places, refuse_nothing
from stepprof.analysis.timeline.model import Source
from stepprof.analysis.timeline.parts import Part
from stepprof.analysis.timeline.placement import Place
from stepprof.analysis.timeline.raw import read_header
from stepprof.analysis.timeline.workers import Failed, each_in_worker
from stepprof.errors import ConfigError

CONVERTED = "stepprof.json"
"""The archive's member for all sources that Perfetto cannot read itself."""
_LONGEST = 99
"""Bytes in the name of a member. Perfetto's UI supports no longer ones."""
_LOOKED_AT = 128
"""Bytes by which Perfetto recognises the format of a member."""
_CHROME = re.compile(rb'\s*(?:\[\s*)?\{\s*"(?!(?:meta|libs|perfetto_manifest)")')
"""How a trace of Chrome's format begins. Perfetto takes one that begins otherwise for another format, or
refuses the whole archive.
"""


@dataclass(frozen=True, slots=True)
class _Read:
    """One source."""

    wanted: Input
    part: Part
    offset_ns: int | None
    """What is added to the times in its file to get the common clock; None: its file cannot be in the
    archive.
    """


def write_archive(
    inputs: Sequence[Input],
    output: Path,
    *,
    title: str = "timeline",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    assume: Mapping[str, int] | None = None,
    roles: Mapping[str | None, int] | None = None,
    left_out: Sequence[tuple[str | None, str]] = (),
    about: Mapping[str, object] | None = None,
) -> Merged:
    """Write an archive. The arguments are those of `stepprof.analysis.timeline.merge.merge`.

    Raises:
        ConfigError: there is nothing to write, or the output cannot be written.
    """
    if not inputs:
        raise ConfigError(nothing(left_out))
    assume = dict(assume or {})
    ordered = places(inputs, roles or {})
    results = each_in_worker(
        _read,
        [(wanted, place, assume) for wanted, place in ordered],
        sizes=[wanted.bytes for wanted, _ in ordered],
        workers=workers,
        progress=progress,
    )
    sources = [
        _Read(wanted, Part.failed(wanted, place, f"not in the archive: {result.reason}"), None)
        if isinstance(result, Failed)
        else result
        for (wanted, place), result in zip(ordered, results, strict=True)
    ]
    refuse_nothing([each.part for each in sources])
    alignments = [each.part.alignment for each in sources]
    others = [each.wanted for each in sources if each.offset_ns is None and each.part.events]
    originals = [each.wanted for each in sources if each.offset_ns is not None]
    made = Merged(
        output, "archive", 0, [each.part for each in sources], describe(alignments), worst_error(alignments)
    )
    try:
        with tempfile.TemporaryDirectory(prefix=".stepprof-", dir=output.parent) as scratch:
            whole = Path(scratch, "whole")
            with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                files = _write_originals(archive, sources)
                if others:
                    files.append(
                        _write_converted(
                            archive,
                            others,
                            Path(scratch),
                            title=title,
                            assume=assume,
                            roles=roles,
                            apart_from=originals,
                        )
                    )
                archive.writestr(MANIFEST, manifest(files, _attributes(made, about or {})))
            size = whole.stat().st_size
            whole.replace(output)
    except OSError as problem:
        raise ConfigError(
            f'output = "{output}": cannot be written: {problem.strerror or problem}; name another file with --output'
        ) from problem
    return replace(made, bytes=size)


def _read(wanted: Input, place: Place, assume: Mapping[str, int]) -> _Read:
    source = load(wanted, args=False, assume=assume, flows=False)
    source.findings += never_compared(source.origin, source.alignment)
    offset = _offset(wanted, source)
    if offset is None and wanted.origin.kind != "spans" and source.extent is not None:
        source.findings.append(f"is in {CONVERTED}, converted, and not as it was recorded")
    if offset is not None and (wanted.within is not None or _is_cut(wanted, source)):
        source.findings.append("the archive has its whole file, including events outside of the step")
    return _Read(wanted, Part.of(source, place), offset)


def _is_cut(wanted: Input, source: Source) -> bool:
    """Return whether a timeline omits an engine's events outside of its window."""
    return len(cut(source, wanted.window).source.slices) < len(source.slices)


def _offset(wanted: Input, source: Source) -> int | None:
    """Return the nanoseconds to add to the times in the file of a source, if Perfetto can read the file."""
    if source.anchor_ns is None or source.extent is None or not source.sound or wanted.piece is not None:
        return None
    if not wanted.paths[0].endswith((".json", ".json.gz")):
        return None  # a database
    if not _CHROME.match(b"".join(blocks(Path(wanted.paths[0]), _LOOKED_AT, [], _LOOKED_AT))):
        return None
    return source.anchor_ns - source.alignment.offset_ns


def _write_originals(archive: zipfile.ZipFile, sources: Sequence[_Read]) -> list[Entry]:
    """Write the traces that Perfetto reads. Return their entries in the manifest."""
    entries = []
    used = {MANIFEST, CONVERTED}
    for each in sources:
        if each.offset_ns is None:
            continue
        name = _member(each.part.path, len(used))
        if name in used:
            name = _member(f"{len(used)}/{each.part.path}", len(used))
        used.add(name)
        _copy(Path(each.wanted.paths[0]), archive, name)
        entries.append(entry(name, each.part.label, each.offset_ns))
    return entries


def _member(path: str, number: int) -> str:
    """Return the name of a trace in the archive.

    Perfetto configures no compressed member, and skips names that begin with a dot.

    >>> _member("step-000002/actor/rank-0.trace.json.gz", 3), _member("../.hidden/é.json", 3)
    ('step-000002/actor/rank-0.trace.json', '_hidden/é.json')
    """
    parts = [part for part in path.removesuffix(".gz").split("/") if part not in ("", ".", "..")]
    name = utf8("/".join("_" + part[1:] if part.startswith(".") else part for part in parts))
    return name if name and len(name.encode()) <= _LONGEST else f"{number}.trace.json"


def _copy(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    problems: list[str] = []
    # a size that is not known before needs it; it also keeps versions away that ignore the manifest
    with archive.open(name, "w", force_zip64=True) as member:
        for block in blocks(path, Limits().inflated_bytes, problems):
            member.write(block)
    if problems:
        raise ConfigError(f"{path}: was changed while it was read; merge again")


def _write_converted(archive: zipfile.ZipFile, others: Sequence[Input], scratch: Path, **how: Any) -> Entry:
    """Write other sources as one timeline. Return its entry in the manifest."""
    made = merge(others, scratch / "converted.json.gz", format="json", workers=1, **how)
    header, _ = read_header(made.path)
    base: Any = header["baseTimeNanoseconds"]
    _copy(made.path, archive, CONVERTED)
    return entry(CONVERTED, "stepprof", base)


def _attributes(made: Merged, about: Mapping[str, object]) -> dict[str, object]:
    return {
        "stepprof.clock": made.clock,
        "stepprof.clock_error_ns": made.clock_error_ns,
        "stepprof.run_id": about.get("run_id"),
        "stepprof.step": about.get("step"),
    }
