"""Test hosts with different clocks: the C library gives one of two processes another time
(libfaketime, Debian's `faketime`), without a change to stepprof.
"""

from pathlib import Path

from analysis.timeline.test_alignment import check_both_ways, loaded, record

AHEAD_NS = 7_250_000_000


def test_no_message_arrives_before_it_was_sent(tmp_path):
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    faked = {"LD_PRELOAD": str(library), "FAKETIME": "+7.25s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    record(tmp_path, other=faked)
    found, sources = loaded(tmp_path)
    assert found.findings == []
    alignment = sources["spans", 1].alignment
    assert alignment.method == "ping-pong"
    assert abs(alignment.offset_ns - AHEAD_NS) <= alignment.error_ns + 1_000
    assert alignment.error_ns < AHEAD_NS / 1_000
    check_both_ways(sources, "spans", {"region"}, alignment.error_ns)
