"""Runs that contain a trap: each command ends, names the file and reads the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fuzz.reading import COMMANDS, Reader
from fuzz.wholerun import whole_run
from timelines import Timeline

HOLE = 200 << 30
PLACES = [
    "run.json",
    "spans/rank-0.000001.jsonl",
    "step-000002/manifest/actor-rank-0.json",
    "step-000002/actor/rank-0.trace.json.gz",
    "step-000002/rollout/replica-0/rank-0.trace.json",
    "step-000002/ref/rank-0.memory.pickle",
    "status/rank-0.json",
]


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def sparse(path):
    """Extend a complete file by 200 GiB of zeros."""
    os.truncate(path, HOLE)


@pytest.fixture(scope="module")
def reader():
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture
def run(tmp_path):
    return whole_run(tmp_path / "runs")


def carried_out(reader, run, *commands):
    """Return the output of commands; each must end by itself with a status."""
    outcomes = [reader.carry_out(command, run, run.parent.parent) for command in commands]
    assert [outcome.traceback for outcome in outcomes] == [""] * len(commands)
    assert {outcome.status for outcome in outcomes} <= {0, 1, 2}
    return [outcome.out for outcome in outcomes]


@pytest.mark.parametrize("trap", [fifo, device, sparse])
@pytest.mark.parametrize("place", PLACES)
def test_every_command_survives_a_hostile_file(run, reader, place, trap):
    """Every command ends within seconds. `check` names the file; for a status file, `status` counts
    it as damaged.
    """
    trap(run / place)
    out = dict(zip(COMMANDS, carried_out(reader, run, *COMMANDS), strict=True))
    if place.startswith("status"):
        assert "1 damaged" in out["status"]
    elif trap is sparse and place.startswith("spans"):
        assert "forward" in out["spans"]  # the lines before the hole
    else:
        assert Path(place).name in out["check"]
    if place.startswith("step-000002/manifest"):
        assert "actor-rank-0.json: cannot be read" in out["report"]
    assert "actor" in out["show"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("world_size", 10**18),
        ("world_size", 10**400),
        ("start_unix_ns", float("inf")),
        ("end_unix_ns", float("nan")),
        ("stall_seconds", float("-inf")),
        ("occurrence", 10**30),
        ("start_seconds", 10**400),
        ("artifacts", [{"path": "a\0b", "bytes": 1}]),
        ("artifacts", [{"path": "a", "bytes": 10**400}]),
        ("capture", {"step": 10**400, "stem": "a"}),
        ("capture", {"step": 2, "stem": "a\0b"}),
    ],
)
def test_an_impossible_value_is_a_finding(run, reader, key, value):
    """`check` reports the value with the name of its file. The windows of the other rank are read."""
    file = run / "step-000002/manifest/actor-rank-0.json"
    content = json.loads(file.read_text())
    content["windows"][0][key] = value
    file.write_text(json.dumps(content))
    check, show, *_ = carried_out(reader, run, "check", "show --json", "show", "report", "merge", "ls RUN")
    assert (
        f"step-000002/manifest/actor-rank-0.json: damaged: {'an artifact' if key == 'artifacts' else key}"
        in check
    )
    found = json.loads(show)["manifest"]
    assert [window["rank"] for window in found["windows"]] == [0, 1, 0]
    assert found["findings"][0]["fragment"] == "actor-rank-0.json"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"world_size": 10**18}, "run.json: damaged: world_size = 1000000000000000000"),
        ({"run_id": "x" * 10_000}, "run.json: damaged: run_id = 'xxx"),
        ({"config": "x"}, "run.json: damaged: config = 'x'"),
    ],
)
def test_impossible_values_of_a_run_are_findings(run, reader, change, problem):
    """`check` reports the value exactly once."""
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, **change}))
    check, _ = carried_out(reader, run, "check", "ls")
    assert check.count(problem) == 1


def test_deep_lines(run, reader):
    """Lines of spans, manifests and traces are nested very deeply. `check` reports them, and
    `spans` shows the other lines.
    """
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    with (run / "spans/rank-0.000001.jsonl").open("ab") as file:
        file.write(deep + b"\n")
    (run / "step-000002/manifest/actor-rank-1.json").write_bytes(deep)
    (run / "step-000002/rollout/replica-0/rank-0.trace.json").write_bytes(b'{"traceEvents":[' + deep + b"]}")
    check, spans, *_ = carried_out(reader, run, "check", "spans", "report", "merge", "show")
    assert "actor-rank-1.json: damaged: lists and objects are nested deeper than 64" in check
    assert "spans/rank-0.000001.jsonl: 1 damaged line ignored" in check
    assert "forward" in spans


def test_a_thousand_problems_of_one_file(run, reader):
    """`check` lists the first twenty problems and counts the others."""
    file = run / "step-000002/manifest/actor-rank-0.json"
    content = json.loads(file.read_text())
    content["windows"] *= 1000
    for window in content["windows"]:
        window["status"] = "x" * 1000
    file.write_text(json.dumps(content))
    (check,) = carried_out(reader, run, "check")
    assert check.count("status = 'xxx") == 20
    assert "and 980 further problems" in check


def test_folders_that_only_look_like_steps_are_ignored(run, reader):
    """The names have an impossible step number, non-ASCII digits or a superfluous leading zero."""
    for name in ("step-" + "9" * 100, "step-0000002", "step-\u0661\u0662\u0663\u0664\u0665\u0666"):
        (run / name).mkdir()
    (listed,) = carried_out(reader, run, "ls RUN")
    assert listed.count("\n") == 4


def test_half_of_a_surrogate_pair_in_a_trace(run, reader):
    """`merge` and `report` lose no event, and `check` reports the replacement."""
    trace = run / "step-000002/rollout/replica-0/rank-0.trace.json"
    trace.write_text(trace.read_text().replace("[DECODE", r"\ud800x"))  # the size stays the same
    commands = ("merge", "report", "show", "check")
    merged, report, _, check = carried_out(reader, run, *commands)
    drawn = Timeline((run.parents[1] / "timeline.pftrace").read_bytes())
    assert sum("step\ufffdx bs=4" in each["name"] for each in drawn.slices) == 8
    reported = "half of a surrogate pair: replaced by U+FFFD"
    assert all(reported in " ".join(out.split()) for out in (merged, report, check))


SEARCHED = b'"name": "a"b ' * 300_000 + b"x\n"
GROUPS = b",\n".join(
    b'{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 20, "ts": %d, "dur": 9, "args": {'
    b'"Collective name": "allreduce", "Process Group Name": "%d", "Group size": 1000, "Seq": 1}}' % (n, n)
    for n in range(50_000)
)


@pytest.mark.parametrize("events", [SEARCHED, GROUPS], ids=["names", "groups"])
def test_a_trace_of_which_each_part_could_be_compared_with_each(run, reader, events):
    """The trace has some megabytes with patterns that could take quadratic time. Every command ends
    within seconds.
    """
    trace = run / "step-000002/rollout/replica-0/rank-0.trace.json"
    trace.write_bytes(b'{"baseTimeNanoseconds": 1700000000000000000, "traceEvents": [\n' + events + b"\n]}")
    carried_out(reader, run, "check", "report", "merge", "show")


def test_a_link_that_leads_to_itself(run, reader):
    """The link is in place of a run or of a step's folder. Each command ends with a status and no
    traceback.
    """
    (run / "step-000009").symlink_to("step-000009")
    (run.parent / "loop").symlink_to("loop")
    for command in COMMANDS:
        for place in ("loop", "r/step-000009"):
            outcome = reader.carry_out(command, run.parent / place, run.parent.parent)
            assert (outcome.traceback, outcome.status in (0, 1, 2)) == ("", True)


def test_the_content_of_other_files_is_never_shown(run, reader):
    """A folder of traces may have links to private files of the reader. No output contains a part
    of such a file.
    """
    private = run.parent / "private"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    trace = run / "step-000002/actor/rank-1.trace.json.gz"
    trace.unlink()
    trace.symlink_to(private)
    for out in carried_out(reader, run, "report traces", "report"):
        assert "BEGIN" not in out
    assert "BEGIN" not in (run.parents[1] / "traces.json").read_text()
