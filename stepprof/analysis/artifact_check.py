"""Check one artifact: it exists, has the size in its manifest, and is readable to its end.

Traces are read by the reader of `stepprof merge`, so a trace that passes here is also on the
timeline. That needs `stepprof[report]`. Without it, only the compression and the JSON are checked,
and a note says so. The processes of a job ignore files that another user wrote into the run directory
(`stepprof.host.own_files`): the check reports that too, since the job's log may be gone, and a
command or a budget that never acted.
"""

from __future__ import annotations

import errno
import gzip
import importlib.util
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.formats import npu_folder
from stepprof.formats.memory_snapshot import snapshot_problem
from stepprof.formatting import counted, install
from stepprof.formatting import size as size_of
from stepprof.host.plain_files import data_bytes, data_chunks, open_plain, readable
from stepprof.host.plain_json import parse_json
from stepprof.run.layout import AFTER, MANIFEST, REQUESTS, SPANS, step_folder
from stepprof.run.names import STATUS
from stepprof.run.runs import read_run, steps
from stepprof.run.status import read_statuses

if TYPE_CHECKING:
    from stepprof.analysis.timeline.npu_database import DatabaseStream
    from stepprof.analysis.timeline.raw import TraceStream

PARSED_BYTES = 64 * 2**20
"""The largest other JSON file that is parsed [bytes]; parsing takes about twenty times as much memory."""
MOST_BYTES = 32 << 30
"""The most that is read of one artifact [bytes, uncompressed]."""
_CHUNK = 1 << 20
_FIRST_EVENT = re.compile(rb'"traceEvents"\s*:\s*\[\s*([^\s])')
_READER = ("isal", "msgspec", "numpy")
_JSON = (".json", ".json.gz")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check; `notes` are not failures."""

    problem: str | None = None
    notes: tuple[str, ...] = ()


def check_artifact(file: Path, size: int, kind: str | None) -> Checked:
    """Check one artifact.

    Args:
        file: where it should be.
        size: bytes, as the manifest says.
        kind: the manifest's kind; of a trace, events are expected.
    """
    try:
        if kind == npu_folder.KIND:
            return Checked(_folder_problem(file))
        with open_plain(file) as opened:
            there = os.fstat(opened.fileno()).st_size
        if there != size:
            return Checked(f"has {there} bytes; the manifest lists {size}")
        if there == 0:
            return Checked("is empty")
        if kind == "memory-snapshot" and size <= PARSED_BYTES:
            return Checked(snapshot_problem(file))
        is_trace = "trace" in (kind or "") and file.name.endswith(_JSON)
        if is_trace and all(map(importlib.util.find_spec, _READER)):
            return _trace(file)
        with open_plain(file) as opened:
            return _content(opened, file.name, is_trace=is_trace)
    except FileNotFoundError:
        return Checked("is missing")
    except IsADirectoryError:
        return Checked("is not a file")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return Checked(f"is damaged: {error}")
    except OSError as error:
        return Checked(f"cannot be read: {error.strerror or error}")


def _content(file: io.BufferedReader, name: str, *, is_trace: bool) -> Checked:
    """Read a file that is not a trace, or not one of a known format."""
    written = data_bytes(file)
    if not name.endswith((*_JSON, ".gz")):
        for _ in data_chunks(file):
            pass
        return Checked()
    if written < os.fstat(file.fileno()).st_size:
        return Checked(f"has a hole at byte {written}")
    stream = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
    if name.endswith(_JSON):
        return _json(stream, is_trace=is_trace)
    for _ in _chunks(stream):
        pass
    return Checked()


def _trace(file: Path) -> Checked:
    from stepprof.analysis.timeline.raw import TraceStream

    return check_trace(TraceStream(file), file.name)[0]


def check_trace(
    stream: TraceStream | DatabaseStream, name: str, base_ns: int | None = None
) -> tuple[Checked, int]:
    """Read a trace to its end. Return the result, and its number of events.

    Args:
        stream: its events.
        name: of the file.
        base_ns: the Unix time of its zero, if it does not state one; None: such a trace has a problem.
    """
    from stepprof.analysis.timeline.kineto import read
    from stepprof.analysis.timeline.load import without_strays
    from stepprof.analysis.timeline.model import Alignment, Origin

    source = read(
        stream, Origin("trace", name), Alignment("reference"), args=False, flows=False, base_ns=base_ns
    )
    source = without_strays(source)
    about_events = source.findings[len(stream.findings) :]
    events = len(source.slices) + len(source.instants) + len(source.counters)
    if events:
        return Checked("; ".join(stream.findings) or None, tuple(about_events)), events
    return Checked("; ".join(source.findings) or "has no events"), 0


def _json(stream: BufferedIOBase, *, is_trace: bool) -> Checked:
    held = bytearray()
    end = b""
    total = 0
    for chunk in _chunks(stream):
        total += len(chunk)
        if len(held) < PARSED_BYTES:
            held += chunk
        end = (end + chunk)[-64:]
    notes = [f"its events were not checked: {install('report')}"] if is_trace else []
    if total <= len(held):
        try:
            content = parse_json(bytes(held))
        except ValueError as error:
            return Checked(f"is not JSON: {error}")
        events = content.get("traceEvents") if isinstance(content, dict) else content
        some = isinstance(events, list) and bool(events)
    else:
        if end.rstrip()[-1:] != {b"{": b"}", b"[": b"]"}.get(bytes(held.lstrip()[:1])):
            return Checked(f"is not JSON: it has an unexpected end: {end[-20:]!r}")
        first = _FIRST_EVENT.search(held)
        some = first is not None and first[1] != b"]"
        notes.append(f"is larger than {size_of(PARSED_BYTES)}: only its start and end were checked")
    return Checked("has no traceEvents" if is_trace and not some else None, tuple(notes))


def _folder_problem(folder: Path) -> str | None:
    """Return the problem of a folder of torch_npu. Its size is not compared: it grows with the analysis."""
    if not folder.is_dir():
        return "is not a folder" if folder.exists() else "is missing"
    inside = list(npu_folder.profile_folders(folder)) or [folder]
    return next((problem for found in inside if (problem := npu_folder.missing_parts(found))), None)


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    """Yield the content of a stream. Raises OSError if it is larger than the limit."""
    total = 0
    while chunk := stream.read(_CHUNK):
        total += len(chunk)
        if total > MOST_BYTES:
            raise OSError(errno.EFBIG, f"holds more than {MOST_BYTES} bytes uncompressed")
        yield chunk


_OVER = ("ended", "crashed", "replaced", "damaged")


@dataclass(frozen=True, slots=True)
class Kept:
    """What matters about a step: its windows, the runs of the command, and the remaining artifacts."""

    step: int
    windows: bool
    completed: bool
    uploaded: bool
    artifacts: bool


def foreign_files(run: Path) -> Iterator[tuple[str, str]]:
    """Yield each folder of a run with files of another user, and a sentence about them."""
    try:
        owner = run.stat().st_uid
    except OSError:
        return
    for name in (
        ".",
        SPANS,
        STATUS,
        REQUESTS,
        AFTER,
        *(f"{step_folder(step)}/{MANIFEST}" for step in steps(run)),
    ):
        found: dict[int, list[str]] = {}
        try:
            with os.scandir(run / name) as entries:
                for entry in entries:
                    user = entry.stat(follow_symlinks=False).st_uid
                    if user != owner and not entry.is_dir():
                        found.setdefault(user, []).append(entry.name)
        except OSError:
            continue
        for user, names in found.items():
            more = f" and {counted(len(names) - 1, 'other file')}" if len(names) > 1 else ""
            who = f"belongs to user {user}, and the run to user {owner}: the job ignores it"
            yield name, f"{readable(min(names))}{more} {who}"


def never_kept(run: Path, recorded: Sequence[Kept]) -> Iterator[str]:
    """Yield a sentence for each configured action that never happened, once all processes of the job have ended."""
    config = read_run(run).get("config")
    if not isinstance(config, dict) or not recorded:
        return
    if any(status["condition"] not in _OVER for status in read_statuses(run)):
        return
    yield from _never_ran(run, config, recorded)
    missing = [each.step for each in recorded if each.artifacts and not each.uploaded]
    if isinstance(config.get("upload"), str) and missing:
        yield f"upload is configured but step {_first(missing)} was never uploaded: `stepprof follow` does it"
    budget = config.get("keep_steps")
    there = sum(each.artifacts for each in recorded)
    if type(budget) is int and there > max(budget, 1):
        yield f"keep_steps = {budget}, but the artifacts of {there} steps exist: `stepprof follow` deletes the oldest"


def _never_ran(run: Path, config: Mapping[str, Any], recorded: Sequence[Kept]) -> Iterator[str]:
    if not isinstance(config.get("on_complete"), list):
        return
    if config.get("on_complete_when") == "run":
        if not any(path.name.startswith("on-complete") for path in (run / AFTER).glob("*.json")):
            yield "on_complete is configured but never ran: `stepprof follow` runs it"
        return
    without = [each.step for each in recorded if each.windows and not each.completed]
    if without:
        yield f"on_complete is configured but never ran for step {_first(without)}: `stepprof follow` runs it"


def _first(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:8])) + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")
