"""Test `stepprof open` in a real browser: the bundled viewer loads the timeline from it and
contacts no other host.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chromium import chromium
from runs import make_run, record

SLICES = """(async () => {
    if (typeof app === "undefined" || !app.trace) return 0;
    const result = await app.trace.engine.query("select count(*) as n from slice where dur = 5000");
    return Number(result.firstRow({n: 0}).n);
})()"""


@contextmanager
def opened(*arguments: str) -> Iterator[str]:
    """Run the command, yield the address that it prints, and end it with Ctrl-C."""
    command = [sys.executable, "-m", "stepprof", "open", "--no-browser", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if line.startswith("http://"))
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_a_step_is_merged_and_shown(tmp_path: Path) -> None:
    """The command merges a run without a timeline. The viewer has every slice of every rank without
    an import error, under the names of the ranks.
    """
    run = make_run(tmp_path / "runs")
    for rank in range(2):
        events = [{"ph": "X", "name": "op", "pid": 7, "tid": 7, "ts": n * 10, "dur": 5} for n in range(500)]
        trace = {"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": events}
        record(run, rank=rank, data=gzip.compress(json.dumps(trace).encode()), pid=100 + rank)
    with opened(str(run.path), "--step", "2") as url, chromium() as page:
        page.goto(url)
        assert page.wait_for(SLICES) == 1000
        errors = page.evaluate(
            "app.trace.engine.query(\"select count(*) as n from stats where severity = 'error' and value > 0\").then(each => Number(each.firstRow({n: 0}).n))"
        )
        shown = page.wait_for("document.body.innerText.includes('actor rank 1') && document.body.innerText")
    assert errors == 0
    assert shown.index("actor rank 0") < shown.index("actor rank 1")


def test_the_viewer_shows_the_slices_and_contacts_no_other_server(tmp_path: Path) -> None:
    """The viewer's own trace processor has all 1,000 slices of a trace. Only the server of the
    command answered requests of the page.
    """
    events = [
        {"ph": "X", "name": f"slice {number}", "pid": 1, "tid": 1, "ts": number * 10, "dur": 5}
        for number in range(1000)
    ]
    trace = tmp_path / "steps.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    with opened(str(trace)) as url, chromium() as page:
        page.goto(url)
        assert page.wait_for(SLICES) == len(events)
        title = page.wait_for("document.title.includes('steps') && document.title")
        origin = url.partition("/#")[0].rpartition("/")[0]
        answered = set(page.answered)
    assert "steps.json.gz" in title
    assert {address for address in answered if not address.startswith((origin, "data:", "blob:"))} == set()
    assert any(address.endswith("steps.json.gz") for address in answered)
