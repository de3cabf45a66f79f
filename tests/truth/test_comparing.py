"""The comparison itself: it detects any false statement of a report."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.schema import Finding, Report
from stepprof.analysis.timeline.find import find
from truth.comparing import differences
from truth.model import Shape, Truth
from truth.simulate import simulate
from truth.writing import write

WHOLE = Shape(
    seed=11,
    ranks=4,
    machines=2,
    device="cuda",
    phases=("ref", "actor"),
    kinds=("all_reduce",),
    rounds=3,
    local="mixed",
    profiler="equal",
    driver="waits",
    engines=((2, 1),),
)
CAPPED = dataclasses.replace(WHOLE, fates=((3, "capped"),))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Shape, tuple[Truth, Report]]:
    """Return two steps with every feature, and their reports, which agree with the truth."""
    found = {}
    for shape in (WHOLE, CAPPED):
        folder: Path = tmp_path_factory.mktemp("truth")
        truth = simulate(shape)
        report = analyse(find([write(truth, folder)], output_dir=folder), workers=1)
        assert differences(truth, report) == []
        assert any(each.topic == "memory" for each in report.findings)
        found[shape] = (truth, report)
    return found


def first_of(rows, change):
    """Return the rows with the first one changed."""
    return [replace(rows[0], **change(rows[0])), *rows[1:]]


def waits(report):
    """Return the rows of the skew, those of waits in collectives first."""
    rows = sorted(report.skew, key=lambda row: row.basis)
    assert rows[0].basis == "collectives"
    return rows


FALSE = {
    "the step is longer": lambda r: {"seconds": r.seconds + 0.01},
    "a role is longer": lambda r: {"roles": first_of(r.roles, lambda row: {"seconds": row.seconds + 0.001})},
    "a region is not there": lambda r: {"regions": r.regions[1:]},
    "a process was busier": lambda r: {"idle": first_of(r.idle, lambda row: {"busy": row.busy + 0.001})},
    "a wait is of the host": lambda r: {
        "idle": [
            replace(
                row,
                causes={
                    **row.causes,
                    "collective": 0.0,
                    "host": row.causes.get("host", 0.0) + row.causes.get("collective", 0.0),
                },
            )
            for row in r.idle
        ]
    },
    "another rank was the last": lambda r: {
        "skew": first_of(
            [row for row in r.skew if row.basis == "end"],
            lambda row: {
                "straggler": row.waited[0].label,
                "waited": [replace(row.waited[0], label=row.straggler), *row.waited[1:]],
            },
        )
    },
    "another rank was waited for": lambda r: {
        "skew": first_of(
            waits(r),
            lambda row: {
                "straggler": row.waited[0].label,
                "waited": [replace(row.waited[0], label=row.straggler), *row.waited[1:]],
            },
        )
    },
    "a rank waited longer": lambda r: {
        "skew": first_of(
            waits(r),
            lambda row: {
                "waited": [replace(row.waited[0], seconds=row.waited[0].seconds + 0.001), *row.waited[1:]]
            },
        )
    },
    "no wait is said": lambda r: {"skew": [row for row in r.skew if row.basis == "end"]},
    "the clock of a host is wrong": lambda r: {
        "sources": [
            replace(each, offset_ns=each.offset_ns + (1_000_000 if each.host == "node-1" else 0))
            for each in r.sources
        ]
    },
    "an engine had smaller batches": lambda r: {
        "rollout": first_of(r.rollout, lambda row: {"peak_batch": row.peak_batch / 2})
    },
    "an engine had one more forward step": lambda r: {
        "engines": first_of(
            r.engines,
            lambda row: {"stages": [replace(each, iterations=each.iterations + 1) for each in row.stages]},
        )
    },
    "a device was busier": lambda r: {
        "overlap": first_of(r.overlap, lambda row: {"busy_share": row.busy_share + 0.01})
    },
    "an operator ran once more": lambda r: {"ops": first_of(r.ops, lambda row: {"calls": row.calls + 1})},
    "the recording cost less": lambda r: {
        "overhead": [replace(row, stall=0.0) if row.stall else row for row in r.overhead]
    },
    "nothing is said of the capped capture": lambda r: {
        "findings": [each for each in r.findings if each.topic != "coverage"]
    },
    "the memory is of another device": lambda r: {
        "findings": [*r.findings, Finding("rank 1 reached 4.0 GiB (CPU, allocated)", "memory")]
    },
    "less memory": lambda r: {
        "findings": [*r.findings, Finding("rank 1 reached 0.1 GiB (GPU 0, allocated)", "memory")]
    },
    "memory that ran out": lambda r: {
        "findings": [
            *r.findings,
            Finding(
                "the allocator of rank 1 (device 0) found no memory 1 time since its process began, and freed its cache",
                "memory",
            ),
        ]
    },
    "a sentence that nobody has checked": lambda r: {
        "findings": [*r.findings, Finding("rank 1 is to blame for everything", "straggler")]
    },
    "a sentence of the wrong rank": lambda r: {
        "findings": [
            *r.findings,
            Finding("rank 3 was the last to finish ref: 800 ms behind rank 0", "straggler"),
        ]
    },
}


@pytest.mark.parametrize("what", FALSE)
def test_a_false_report_is_detected(made, what):
    truth, report = made[CAPPED if "capped" in what else WHOLE]
    assert differences(truth, replace(report, **FALSE[what](report))) != []
