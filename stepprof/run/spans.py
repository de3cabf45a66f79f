"""Read the spans of a run, from the files of all ranks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepprof.host.plain_files import open_plain, readable
from stepprof.interrupts import ignored
from stepprof.run.fields import is_rank
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import parse_span, span_lines

_SPANS_FILE = re.compile(r"rank-(.+)\.(\d{1,18})\.jsonl", re.ASCII)
_HEADER_BYTES = 1 << 16

EVIDENCE = frozenset({"gc", "awaits", "stack", "tasks", "usage"})
"""The kinds of lines that are evidence of a recorded window, and no spans (`stepprof.run.evidence`)."""


def spans_in(folder: Path) -> list[Path]:
    """Return the span files in a folder, in the order of their names. Raise OSError if it cannot be read."""
    found = (file for file in folder.iterdir() if _SPANS_FILE.fullmatch(readable(file.name)))
    return sorted(found, key=lambda file: file.name)


def named_in(file: Path) -> tuple[int | str, int]:
    """Return the rank and the number in the name of a span file. The rank is a guess, for a damaged first line."""
    rank, number = _SPANS_FILE.fullmatch(readable(file.name)).groups()  # type: ignore[union-attr]
    return int(rank) if rank.isdecimal() and len(rank) < 10 else rank, int(number)


def files_by_rank(folder: Path) -> dict[int | str, list[Path]]:
    """Return the span files of each rank, by their first lines; none if the folder cannot be read."""
    found: dict[int | str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for file in spans_in(folder):
            header: dict[str, Any] = {}
            with ignored(OSError), open_plain(file) as lines:
                header = parse_span(lines.read(_HEADER_BYTES).partition(b"\n")[0]) or {}
            stated = _origin(header) if header.get("kind") == "spans" else {}
            rank = stated.get("rank", named_in(file)[0])
            found.setdefault(rank, []).append(file)
    return found


def read_spans(
    path: Path,
    *,
    step: int | None = None,
    findings: list[dict[str, Any]] | None = None,
    evidence: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the spans of a run, rank by rank and in the order of the files.

    Each has the ``rank``, ``host`` and ``pid`` of its file.

    Args:
        path: the run's folder.
        step: only the spans of this step.
        findings: receives {file, problem} for each file with damaged lines. An incomplete last line is not a finding: its process was writing it, or was killed.
        evidence: yield lines of evidence too.
    """
    try:
        files = spans_in(path / SPANS)
    except FileNotFoundError:
        return
    except OSError as error:
        _note(findings, "", f"cannot be read: {error.strerror}")
        return
    for file in files:
        damaged = 0
        origin: dict[str, Any] = {"rank": named_in(file)[0], "host": None, "pid": None}
        try:
            for line in span_lines(file, step):
                span = parse_span(line)
                if span is None:
                    damaged += line.endswith(b"\n")
                elif span.get("kind") == "spans":
                    origin.update(_origin(span))
                elif "name" not in span:
                    damaged += 1
                elif (step is None or span.get("step") == step) and (
                    evidence or span.get("kind") not in EVIDENCE
                ):
                    span.update(origin)
                    yield span
        except OSError as error:
            _note(findings, readable(file.name), f"cannot be read: {error.strerror}")
        if damaged:
            _note(findings, readable(file.name), f"{damaged} damaged line{'s' * (damaged > 1)} ignored")


def _origin(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rank, host and process of a file, if its first line states them."""
    kinds = {"rank": (int, str), "host": (str, type(None)), "pid": (int, type(None))}
    reported = {
        key: header[key] for key, kind in kinds.items() if key in header and type(header[key]) in kind
    }
    return reported if is_rank(reported.get("rank", 0)) else {**reported, "rank": "unknown"}


def _note(findings: list[dict[str, Any]] | None, file: str, problem: str) -> None:
    if findings is not None:
        findings.append({"file": f"{SPANS}/{file}", "problem": problem})
