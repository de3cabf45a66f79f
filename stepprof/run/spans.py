"""Read the spans of a run, from the files of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepprof.host.plain_files import readable
from stepprof.run.fields import is_rank
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import parse_span, span_lines

_SPANS_FILE = re.compile(r"rank-(.+)\.(\d{1,18})\.jsonl", re.ASCII)

EVIDENCE = frozenset({"gc", "awaits", "stack", "tasks", "usage"})
"""The kinds of lines that are evidence of a recorded window, and no spans (`stepprof.run.evidence`)."""


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
        found = (file for file in (path / SPANS).iterdir() if _SPANS_FILE.fullmatch(file.name))
        files = sorted(found, key=lambda file: file.name)
    except FileNotFoundError:
        return
    except OSError as error:
        _note(findings, "", f"cannot be read: {error.strerror}")
        return
    for file in files:
        damaged = 0
        origin: dict[str, Any] = {"rank": _rank_of(readable(file.name)), "host": None, "pid": None}
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


def _rank_of(name: str) -> int | str:
    match = _SPANS_FILE.fullmatch(name)
    rank = match[1] if match else name
    return int(rank) if rank.isdecimal() and len(rank) < 10 else rank
