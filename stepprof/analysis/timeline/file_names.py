"""Recognise trace files by the names that engines, frameworks and torch give them, and by what
their heads state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepprof.analysis.timeline.model import Origin
from stepprof.analysis.timeline.raw import read_header
from stepprof.formats.npu_folder import OUTPUT, is_database
from stepprof.host.plain_files import resolved

_SGLANG = re.compile(r"-TP-(\d+)")
_NPU_INFO = re.compile(r"profiler_info_(\d{1,9})\.json")
_MERGED = re.compile(r"merged-(.+)\.trace\.json(?:\.gz)?")
_RANK = re.compile(r"(?:^|[^a-z])rank[-_]?(\d+)", re.IGNORECASE)
_GROUP = re.compile(r"(?:^|[^a-z])dp[-_]?(\d+)", re.IGNORECASE)
_HANDLER = re.compile(r"(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)\.\d+\.pt\.trace\.json(?:\.gz)?")
"""torch.profiler.tensorboard_trace_handler: host_pid.nanoseconds.pt.trace.json. The name of a host has no underscore; other names
before the point (`worker1_step_12`) are of the job.
"""

_DATED = re.compile(
    r"(?P<worker>.+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?|(?P<folder>(?:.*/)?)\d{9,}(?:\.\d+)?-(?P<sglang>[A-Z]+-\d+.*)\.trace\.json(?:\.gz)?"
)
"""The names that torch's handler (also in vLLM) and SGLang write: the worker, and the time at which it was written."""


def short_name(path: str) -> str:
    """Return the path of a trace without the time in its name; empty: its name has none.

    >>> short_name("node-1_4711.1795304130234711483.pt.trace.json"), short_name("a/1690000000.25-TP-1.trace.json.gz")
    ('node-1_4711', 'a/TP-1')
    >>> short_name("trace.json")
    ''
    """
    found = _DATED.fullmatch(path)
    if found is None:
        return ""
    return found["worker"] or found["folder"] + found["sglang"]


def shortened(origins: Sequence[Origin]) -> list[Origin]:
    """Return the traces that stepprof did not record with short names; those of which several would have the same name stay as they are."""
    names = [short_name(each.path) if each.kind == "trace" else "" for each in origins]
    count = Counter(names)
    return [
        replace(each, short=name if count[name] == 1 else "")
        for each, name in zip(origins, names, strict=True)
    ]


def merged_from(name: str) -> str | None:
    """Return the start of the names of the traces that SGLang merged into a file; None: it is no such file.

    >>> merged_from("merged-1690000000.25.trace.json.gz"), merged_from("1690000000.25-TP-1.trace.json.gz")
    ('1690000000.25-', None)
    """
    match = _MERGED.fullmatch(name)
    return f"{match[1]}-" if match else None


def worker_of(name: str) -> int | None:
    """Return the rank in a file's name.

    >>> worker_of("rank-3.decode.trace.json.gz"), worker_of("1690-TP-1-DP-0.trace.json.gz"), worker_of("trace.json")
    (3, 1, None)
    """
    match = _RANK.search(name) or _SGLANG.search(name)
    return int(match[1]) if match else None


def group_of(name: str) -> int | None:
    """Return the data-parallel group in the name of an engine's file. Each group has its own
    scheduler.

    >>> group_of("dp-1-rank-0.trace.json.gz"), group_of("1690-TP-1-DP-0.trace.json.gz"), group_of("rank-0.trace.json.gz")
    (1, 0, None)
    """
    match = _GROUP.search(name.rpartition("/")[2])
    return int(match[1]) if match else None


def origin_of_file(path: Path, shown: str) -> tuple[Origin, list[str]]:
    """Return the origin of a trace that no manifest lists, and the problem of its head."""
    header, findings = header_of(path)
    handler = _HANDLER.fullmatch(path.name)
    host = header.get("host_name")
    if not isinstance(host, str):
        host = handler["host"] if handler else None
    pid = int(handler["pid"]) if handler and len(handler["pid"]) < 12 else None
    stated = header.get("stepprof")
    if isinstance(stated, dict):
        return _of_ours(stated, shown, host, pid), findings
    distributed = header.get("distributedInfo")
    rank = worker_of(path.name)
    stated = distributed.get("rank") if isinstance(distributed, dict) else None
    ranked = type(stated) is int and isinstance(distributed, dict) and distributed.get("world_size") != 1
    if rank is None and type(stated) is int:
        rank = stated
    if rank is None and (npu := _rank_of_npu(resolved(path))) is not None:
        rank, ranked, stated = npu, True, npu
    return Origin("trace", shown, None, rank, None, host, pid, ranked=ranked and rank == stated), findings


def _rank_of_npu(path: Path) -> int | None:
    """Return the rank of a result of torch_npu's analysis, which torch_npu states in the name of its description of the recording."""
    if path.parent.name != OUTPUT:
        return None
    found = [
        int(match[1])
        for each in path.parents[1].glob("profiler_info_*.json")
        if (match := _NPU_INFO.fullmatch(each.name)) is not None
    ]
    return found[0] if len(found) == 1 else None


def stated_step(path: Path) -> tuple[str | None, int | None]:
    """Return the step and run of a file, from what stepprof has written into its head."""
    stated = header_of(path)[0].get("stepprof")
    if not isinstance(stated, dict):
        return None, None
    run_id, step = stated.get("run_id"), stated.get("step")
    return (run_id, step) if isinstance(run_id, str) and type(step) is int else (None, None)


def header_of(path: Path) -> tuple[dict[str, object], list[str]]:
    """Return the metadata of a trace, and its problems."""
    path = resolved(path)  # not a file of a run: a link is the user's own
    if not is_database(path.name):
        return read_header(path, behind=True)
    from stepprof.analysis.timeline.npu_database import DatabaseStream  # with SQLite: 1 MB

    stream = DatabaseStream(path)
    stream.head()
    return stream.header, stream.findings


def _of_ours(stated: dict[str, object], shown: str, host: str | None, pid: int | None) -> Origin:
    def text(key: str) -> str | None:
        value = stated.get(key)
        return value if isinstance(value, str) else None

    def number(key: str) -> int | None:
        value = stated.get(key)
        return value if isinstance(value, int) else None

    rank = stated.get("rank")
    return Origin(
        "engine" if "replica" in stated else "rank",
        shown,
        text("role"),
        rank if isinstance(rank, int | str) else None,
        number("replica"),
        text("host") or host,
        number("pid") or pid,
        number("occurrence") or 1,
    )
