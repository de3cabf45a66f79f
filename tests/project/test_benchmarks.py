"""The benchmark suite runs and prints each documented figure.

No time is asserted, because it depends on the machine. These tests run the measurements that need only
stepprof; `tests/trial` runs all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driven import unmeasured

from benchmarks.figures import Figure, Row
from benchmarks.report import document, table
from benchmarks.timing import Effort, Subject, time_subjects

REPOSITORY = Path(__file__).resolve().parents[2]

LIMITED = {
    ("decorated, no session", "@region"),
    ("with-block, no session", "with region(name)"),
    ("window, no session", "with profile_step(step, role)"),
    ("points, no session", "state()"),
    ("decorated, session on", "@region"),
    ("with-block, session on", "with region(name)"),
    ("window, session on without spans, not selected", "with profile_step(step, role)"),
    ("framework's timer, session on without spans, not selected", "framework's timer, patched"),
    ("window with its span, session on, not selected", "with profile_step(step, role)"),
    ("points, session on", "state()"),
    ("a fresh process", "import stepprof"),
    ("a fresh process", 'init, backend "null": processor time'),
    ("a fresh process", "heavy packages after the import"),
}


def trial(folder: Path, *only: str, against: Path | None = None) -> dict[str, Any]:
    """Start the benchmarks as a user does, with these measurements or all. Return
    the JSON and the printed text.
    """
    path = folder / "bench.json"
    chosen = [argument for name in only for argument in ("--only", name)]
    chosen += [] if against is None else ["--against", str(against)]
    with unmeasured():  # a traced benchmark would measure the tracer
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", "--quick", "--json", str(path), *chosen],
            cwd=REPOSITORY,
            check=False,
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found["printed"] = done.stdout
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the measurements whose limits the documentation promises."""
    return trial(tmp_path_factory.mktemp("bench"), "calls", "starting")


class TestSuite:
    def test_the_document_states_versions_and_machine(self, whole: dict[str, Any]) -> None:
        """The JSON has the versions, the machine, and the note that this was a trial run."""
        assert whole["schema_version"] == 1
        assert whole["quick"] is True
        assert {"python", "platform", "processor", "cores", "versions", "absent", "rows"} <= whole.keys()
        assert {"stepprof", "torch", "verl", "nvtx", "opentelemetry-api", "viztracer"} <= whole[
            "versions"
        ].keys()

    def test_every_row_has_the_same_keys(self, whole: dict[str, Any]) -> None:
        """Each row has the same keys."""
        keys = {"group", "name", "unit", "value", "median", "spread", "added", "ratio"}
        keys |= {"limit", "limit_on", "judged", "within", "note"}
        assert {frozenset(keys)} == {frozenset(row) for row in whole["rows"]}

    def test_every_limit_is_judged(self, whole: dict[str, Any]) -> None:
        """Each promise of the documentation is a row with a limit and a verdict."""
        judged = {(row["group"], row["name"]) for row in whole["rows"] if row["within"] is not None}
        assert judged >= LIMITED


class TestTiming:
    def test_base_and_statement_are_timed_alike(self) -> None:
        """Each subject is measured with both clocks, with one sample per round."""
        timed = time_subjects(
            [Subject("sum", "sum(values)", {"values": [1, 2, 3]}), Subject("pass", "pass")],
            Effort(rounds=3, seconds=0.0002),
        )
        assert list(timed) == ["sum", "pass"]
        assert [timed["sum"].process.rounds, timed["sum"].thread.rounds] == [3, 3]

    def test_a_statement_may_await(self) -> None:
        """A statement may await a coroutine that does not wait."""

        async def nothing() -> None:
            return None

        timed = time_subjects([Subject("await", "await call()", {"call": nothing})], Effort(2, 0.0002))
        assert timed["await"].process.rounds == 2

    def test_a_statement_that_waits_is_refused(self) -> None:
        """A coroutine that really waits raises an error, because there is no event loop."""

        class Waits:
            def __await__(self) -> Any:
                yield

        with pytest.raises(RuntimeError, match="waited for something"):
            time_subjects([Subject("await", "await it()", {"it": Waits})], Effort(2, 0.0002))


class TestFigures:
    def test_minimum_median_and_spread(self) -> None:
        """The spread is the distance between the quartiles, as a share of the median."""
        figure = Figure.of([4.0, 1.0, 2.0, 3.0, 5.0])
        assert (figure.minimum, figure.median, figure.rounds) == (1.0, 3.0, 5)
        assert pytest.approx(2 / 3) == figure.spread

    def test_a_single_sample_has_no_spread(self) -> None:
        """The spread of a single sample is 0."""
        assert Figure(2.0, 2.0, 0.0, 1) == Figure.of([2.0])

    def test_verdicts_in_the_table(self) -> None:
        """A kept limit reads "yes" and a missed one "NO". Without a limit the verdict is empty."""
        rows = [
            Row("g", "kept", "ns", 90.0, limit=100, limit_on="value", judged=90.0),
            Row("g", "missed", "ns", 110.0, limit=100, limit_on="value", judged=110.0, note="why"),
            Row("g", "free", "ns", 110.0),
        ]
        lines = table(rows).splitlines()
        assert [line.split()[-1] for line in lines if "100" in line] == ["yes", "NO"]
        assert "g: missed: why" in lines
        assert [row["within"] for row in document(rows, {}, quick=True)["rows"]] == [True, False, None]  # type: ignore[attr-defined, unused-ignore]
