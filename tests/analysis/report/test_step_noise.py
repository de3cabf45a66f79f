"""The spread between the steps of a run, and its use in a comparison of two steps."""

import json

import pytest
import runs

from stepprof.analysis.report.step_noise import spreads
from stepprof.cli.main import main

SECOND = 10**9
START = 1_700_000_000 * SECOND


def spans(run, rank, seconds, *, first=0):
    """Write spans: in each step a window of `actor` with a region in its first half, then a pause of 1 s."""
    lines = [{"kind": "spans", "rank": rank, "host": "h", "pid": 7 + rank, "run_id": "r", "world_size": 2}]
    at = START
    for step, each in enumerate(seconds, first):
        length = int(each * SECOND)
        own = {"thread": 1, "task": None, "step": step, "role": "actor", "start": at}
        lines.append({"name": "load", "kind": "region", "dur": length // 2, **own})
        lines.append({"name": "actor", "kind": "window", "dur": length, **own})
        at += length + SECOND
    folder = run.path / "spans"
    folder.mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"rank-{rank}.000001.jsonl").write_text(text, encoding="utf-8")


def of(rows, role, region=None):
    return next((row for row in rows if (row.role, row.region) == (role, region)), None)


def test_the_first_step_and_recorded_ones_are_left_out(tmp_path):
    run = runs.make_run(tmp_path)
    spans(run, 0, [60.0, 3.0, 4.0, 30.0, 5.0])
    runs.record(run, step=3)
    rows = spreads([run.path])
    assert of(rows, "actor").steps == 3
    assert (of(rows, "actor").median, of(rows, "actor").deviation) == (4.0, 1.0)
    assert (of(rows, "actor", "load").median, of(rows, "actor", "load").deviation) == (2.0, 0.5)
    assert of(rows, None).median == 4.0


def test_processes_together_are_one_step(tmp_path):
    """A step lasts as long as any process is in it, as in a report."""
    run = runs.make_run(tmp_path)
    spans(run, 0, [1.0, 3.0, 3.0, 3.0])
    spans(run, 1, [1.0, 3.0, 3.0, 5.0])
    assert of(spreads([run.path]), "actor").median == 3.0
    assert of(spreads([run.path]), "actor").deviation == pytest.approx((4 / 3) ** 0.5)


def test_too_few_steps_give_no_spread(tmp_path):
    run = runs.make_run(tmp_path)
    assert spreads([run.path]) == []
    spans(run, 0, [1.0, 3.0, 4.0])
    assert spreads([run.path]) == []


def test_damaged_lines_are_skipped(tmp_path):
    run = runs.make_run(tmp_path)
    spans(run, 0, [1.0, 3.0, 4.0, 5.0])
    file = next((run.path / "spans").iterdir())
    file.write_bytes(file.read_bytes() + b'{"name": "x", "kind": "region", "start": -9e99}\n\xff\n{"name": 1')
    assert of(spreads([run.path]), "actor").steps == 3


def test_a_comparison_of_two_steps_states_it(tmp_path, capsys):
    """The terminal, the JSON and the page state the noise between steps."""
    run = runs.make_run(tmp_path)
    spans(run, 0, [9.0, 3.0, 4.0, 5.0, 2.0, 3.5])
    for step, seconds in ((4, 2.0), (5, 3.5)):
        start = START + int((21 + 4 + (3.0 if step == 5 else 0)) * SECOND)
        runs.record(run, step=step, start_unix_ns=start, end_unix_ns=start + int(seconds * SECOND), data=b"")
    page, table = tmp_path / "c.html", tmp_path / "c.json"
    paths = [f"{run.path}:4", f"{run.path}:5"]
    assert main(["report", *paths, "--html", str(page), "--json", str(table)]) == 0
    shown = capsys.readouterr().out
    assert "3 steps" in shown
    assert "within noise" in shown
    changes = {each["what"]: each for each in json.loads(table.read_text())["changes"]}
    assert changes["actor"]["noise_steps"] == pytest.approx(2.0)
    assert changes["actor"]["steps"] == 3
    assert not changes["actor"]["significant"]
    assert "noise_steps" in page.read_text(encoding="utf-8")
