"""Measure the memory that a source takes at most, in a separate process. A report and a timeline
stay within the limit, whatever the file contains.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.inflate import Limits
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Alignment, Origin

BOUND = 56 << 20
EVENTS = 300_000
BASE = b'{"baseTimeNanoseconds":1790857026000000000,"traceEvents":['
READ = """
import resource, sys
from pathlib import Path
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.process_groups import Communication
from stepprof.analysis.timeline import perfetto
from stepprof.analysis.timeline.arguments import Shortened
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.placement import Place
from stepprof.analysis.timeline.inflate import Limits

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

before = peak()
file, bound = sys.argv[1], int(sys.argv[2])
wanted = Input(Origin("trace", "t"), (file,), Path(file).stat().st_size, alignment=Alignment("reference"))
for what, keep in (("report", Communication()), ("perfetto", Shortened())):
    source = load(wanted, args=keep, limits=Limits(memory_bytes=bound), flows=what != "report")
    if what == "report":
        digest(source)
    else:
        for piece in perfetto.encode(source, Place(0, 1)):
            pass
    print(what, peak() - before, int(not source.whole))
    del source
"""

KINDS = {
    "slices": b'{"ph":"X","name":"a","ts":%(twice)d,"dur":1}',
    "slices that cross": b'{"ph":"X","name":"a","ts":%(twice)d,"dur":3}',
    "slices on many lanes": b'{"ph":"X","name":"a","ts":%(twice)d,"dur":2000}',
    "nested operators": b'{"ph":"X","name":"a","cat":"cpu_op","ts":%(twice)d,"dur":%(back)d}',
    "names": b'{"ph":"X","name":"operator %(n)d","ts":%(twice)d,"dur":1}',
    "threads": b'{"ph":"X","name":"a","tid":%(n)d,"ts":%(twice)d,"dur":1}',
    "names of threads": b'{"ph":"M","name":"thread_name","tid":%(n)d,"args":{"name":"thread %(n)d"}}',
    "what never ends": b'{"ph":"B","name":"a","ts":%(twice)d}',
    "marks": b'{"ph":"i","name":"a","ts":%(twice)d}',
    "steps of requests": b'{"ph":"n","name":"a","id":1,"ts":%(twice)d}',
    "counters": b'{"ph":"C","name":"a","ts":%(twice)d,"args":{"value":%(n)d}}',
    "arrows": b'{"ph":"s","cat":"c","name":"a","id":%(n)d,"ts":%(n)d},{"ph":"f","cat":"c","name":"a","id":%(n)d,"ts":%(twice)d}',
    "arguments": b'{"ph":"X","name":"a","cat":"user_annotation","ts":%(twice)d,"dur":1,"args":{"text":"%(n)064d"}}',
    "collectives": b'{"ph":"X","name":"nccl:all_reduce","cat":"user_annotation","ts":%(twice)d,"dur":1,"args":{"Process Group Name":"%(n)064d","Seq":%(n)d}}',
    "engine steps": b'{"ph":"X","name":"step[DECODE bs=%(few)d]","ts":%(twice)d,"dur":1}',
}


def write(path: Path, kind: str, events: int = EVENTS) -> Path:
    """Write a gzip file of many valid events of one kind."""
    with gzip.open(path, "wb", 1) as file:
        file.write(BASE)
        for first in range(0, events, 10_000):
            numbers = range(first, min(first + 10_000, events))
            some = [KINDS[kind] % {b"n": n, b"twice": 2 * n, b"back": 4 * (events - n), b"few": n % 7} for n in numbers]  # fmt: skip
            file.write((b"," if first else b"") + b",".join(some))
        file.write(b'],"traceName":"behind the events"}')
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_peak(tmp_path: Path, kind: str) -> None:
    """Resident memory grows by no more than the limit for any kind of events, for a report and for
    a timeline of either format.
    """
    path = write(tmp_path / "t.json.gz", kind)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(BOUND)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    grown = {what: int(bytes_) for what, bytes_, _ in map(str.split, done.stdout.splitlines())}
    assert list(grown) == ["report", "perfetto"]
    assert max(grown.values()) <= BOUND, grown
    small = kind in ("marks", "counters", "steps of requests")
    assert done.stdout.endswith("0\n" if small else "1\n")


class TestBound:
    def read(self, path: Path, limit: int | None):
        limits = None if limit is None else Limits(memory_bytes=limit)
        wanted = Input(Origin("trace", "t"), (str(path),), 1, alignment=Alignment("reference"))
        return load(wanted, args=False, limits=limits)

    def test_the_limit_is_reported(self, tmp_path: Path) -> None:
        """The finding has the number of events that were read, and of all. The metadata behind the
        events is read nevertheless.
        """
        path = write(tmp_path / "t.json.gz", "slices", 100_000)
        source = self.read(path, 4 << 20)
        count = len(source.slices)
        assert 0 < count < 50_000
        assert source.findings == [f"the first {count:,} of its 100,000 events are read: a source takes at most 4.0 MiB of memory"]  # fmt: skip
        assert not source.whole
        assert source.metadata["traceName"] == "behind the events"

    def test_names_behind_the_events(self, tmp_path: Path) -> None:
        """Kineto writes the names of threads behind their events. They are read even if events are
        left out.
        """
        events = [{"ph": "X", "name": "a", "ts": n, "dur": 1, "pid": 1, "tid": 2} for n in range(100_000)]
        named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "loader"}}
        path = tmp_path / "t.json"
        path.write_text(
            json.dumps({"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [*events, named]})
        )
        source = self.read(path, 4 << 20)
        assert not source.whole
        assert [track.name for track in source.tracks] == ["loader"]

    def test_ten_million_events_are_within_the_default_bound(self, tmp_path: Path) -> None:
        """A 200th of ten million operators is read completely within a 200th of the default limit."""
        assert Limits().memory_bytes == 4 << 30
        path = write(tmp_path / "t.json.gz", "nested operators", 50_000)
        assert self.read(path, (4 << 30) // 200).whole
