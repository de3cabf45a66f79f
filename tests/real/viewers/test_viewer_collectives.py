"""Test hosts whose clocks were never compared and differ by hours. The C library gives one rank of
a gloo job another time (libfaketime, Debian's `faketime`).
"""

from pathlib import Path

from gloojob import record

from stepprof.analysis.report.analyse import analyse, placed
from stepprof.analysis.timeline.find import find

AHEAD_NS = 5 * 3600 * 10**9


def test_a_job_on_two_hosts_that_were_never_compared(tmp_path):
    """The matched collectives place both hosts on one clock within the stated error. Report and
    timeline have the same offsets.
    """
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    faked = {"LD_PRELOAD": str(library), "FAKETIME": "+5h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    found = find(record(tmp_path, faked), output_dir=tmp_path)
    report = analyse(found, workers=1)
    merged = placed(found, workers=1)
    assert {each.origin.kind for each in merged.inputs} == {"rank", "spans"}
    for host, method, offset, error in [
        *((each.host, each.alignment, each.offset_ns, each.error_ns) for each in report.sources),
        *(
            (each.origin.host, each.alignment.method, each.alignment.offset_ns, each.alignment.error_ns)
            for each in merged.inputs
        ),
    ]:
        assert method == ("reference" if host == "node-0" else "collectives")
        assert abs(offset - (AHEAD_NS if host == "node-1" else 0)) <= error + 1_000
    assert 0 < report.clock_error_ns < 10**9
    assert report.seconds < 60
    assert "1 host placed by its matched collectives" in report.clock
