"""The events of a trace file are read, whether it is intact, damaged or hostile."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from decimal import Decimal
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stepprof.analysis.timeline import inflate
from stepprof.analysis.timeline.event import nanoseconds, nanoseconds_of_text
from stepprof.analysis.timeline.inflate import Limits
from stepprof.analysis.timeline.raw import TraceStream, read_header

BASE = 1_790_857_026_000_000_000


def event(number, **changes):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"op {number}",
        "pid": 7,
        "tid": 8,
        "ts": number + 0.125,
        "dur": 0.5,
        **changes,
    }


def content(events, **header):
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE,
        **header,
        "traceEvents": events,
        "traceName": "t",
    }


def pretty(events, **header):
    """Return a trace in Kineto's layout."""
    return json.dumps(content(events, **header), indent=2, ensure_ascii=False).encode()


def compact(events, **header):
    return json.dumps(content(events, **header), separators=(",", ":"), ensure_ascii=False).encode()


@pytest.fixture
def write(tmp_path):
    def write(data, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def small_blocks(monkeypatch):
    """Use blocks of a few events, so that a small file has many blocks."""
    monkeypatch.setattr("stepprof.analysis.timeline.raw.BLOCK", 700)


def read_raw(path, *, limits=None):
    """Read a whole file."""
    stream = TraceStream(path, limits=limits)
    events = [event for batch in stream for event in batch]
    return SimpleNamespace(events=events, header=stream.header, findings=stream.findings)


def names(path, **options):
    return [event.name for event in read_raw(path, **options).events]


class TestWholeFiles:
    @pytest.mark.parametrize("layout", [pretty, compact])
    @pytest.mark.parametrize("compress", [bytes, gzip.compress])
    def test_events_and_header(self, write, layout, compress, small_blocks):
        """Each event is read once and in order. The header is read from both sides of the events."""
        raw = read_raw(
            write(compress(layout([event(n, args={"a": [{"b": n}, {"c": "},{"}]}) for n in range(100)])))
        )
        assert [each.name for each in raw.events] == [f"op {n}" for n in range(100)]
        assert json.loads(bytes(raw.events[42].args)) == {"a": [{"b": 42}, {"c": "},{"}]}
        assert (raw.events[3].ts, raw.events[3].dur, raw.events[3].pid, raw.events[3].tid) == (
            3.125,
            0.5,
            7,
            8,
        )
        assert raw.header == {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceName": "t"}
        assert raw.findings == []

    @pytest.mark.parametrize("tail", ["]", "", ","])
    def test_bare_array(self, write, tail):
        """A file may be a bare array, which need not be closed."""
        text = "[" + ",\n".join(json.dumps(event(n)) for n in range(5)) + tail
        raw = read_raw(write(text.encode()))
        assert [each.name for each in raw.events] == [f"op {n}" for n in range(5)]
        assert raw.findings == []

    def test_members(self, write):
        """A gzip file may have several members."""
        text = compact([event(n) for n in range(50)])
        data = b"".join(gzip.compress(text[at : at + 900]) for at in range(0, len(text), 900))
        assert names(write(data, "t.json.gz")) == [f"op {n}" for n in range(50)]
        assert names(write(data + b"\0" * 512, "t.json.gz")) == [f"op {n}" for n in range(50)]  # as tar pads

    def test_compression_is_recognised_by_the_content(self, write):
        """The content of a file, and not its name, shows whether it is compressed."""
        assert len(names(write(gzip.compress(compact([event(1)])), "t.json"))) == 1
        assert len(names(write(b"\xef\xbb\xbf" + compact([event(1)]), "t.json.gz"))) == 1

    def test_nested_key_of_the_same_name(self, write):
        """Only `traceEvents` at the top level has the events."""
        raw = read_raw(
            write(
                compact(
                    [event(1)], config={"traceEvents": [{"ph": "X", "name": "no"}]}, text='"traceEvents": ['
                )
            )
        )
        assert [each.name for each in raw.events] == ["op 1"]
        assert raw.header["config"] == {"traceEvents": [{"ph": "X", "name": "no"}]}

    def test_large_keys_behind_the_events(self, write, small_blocks):
        """The keys behind the events may be larger than a block and full of values that look like events."""
        frames = [{"ph": "X", "name": "no"}] * 100
        text = (
            compact([event(n) for n in range(20)])[:-1] + b',"frames":' + json.dumps(frames).encode() + b"}"
        )
        raw = read_raw(write(text))
        assert [each.name for each in raw.events] == [f"op {n}" for n in range(20)]
        assert raw.header["frames"] == frames

    def test_no_events(self, write):
        assert read_raw(write(compact([]))).events == []
        assert read_raw(write(b"[]")).findings == []

    def test_a_file_with_only_a_header(self, write):
        """Reading the header reads no event."""
        header, findings = read_header(write(pretty([event(1)] * 1000, host_name="n1")))
        assert header == {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "host_name": "n1"}
        assert findings == []

    def test_header_that_kineto_broke(self, write):
        """Kineto does not escape its input. The broken line is omitted, and the rest of the header
        is read.
        """
        text = pretty([event(1)], host_name="n1").replace(
            b'"host_name": "n1",', b'"host_name": "n1",\n  "said": "so "he" said",'
        )
        raw = read_raw(write(text))
        assert raw.header["host_name"] == "n1"
        assert raw.header["baseTimeNanoseconds"] == BASE
        assert [each.name for each in raw.events] == ["op 1"]
        assert raw.findings

    def test_names_that_kineto_broke(self, write):
        """Quotation marks and backslashes in a broken name are repaired."""
        text = pretty([event(1), event(2), event(3)]).replace(b"op 2", rb'say "C:\x"')
        raw = read_raw(write(text))
        assert [each.name for each in raw.events] == ["op 1", r'say "C:\x"', "op 3"]
        (finding,) = raw.findings
        assert finding.startswith("1 event was repaired")

    def test_names_that_are_escaped(self, write):
        """An intact name next to a broken one is unchanged."""
        text = pretty([event(1, name='C:\\new "x"'), event(2), event(3)]).replace(b"op 2", b'say "it"')
        assert names(write(text)) == ['C:\\new "x"', 'say "it"', "op 3"]


class TestTimes:
    @given(st.integers(-(2**43) * 1000 + 1, 2**43 * 1000 - 1))
    def test_relative(self, ns):
        """Microseconds with three decimals are exact to the nanosecond, within 101 days on both
        sides of the base.
        """
        times, usable = nanoseconds([float(f"{Decimal(ns) / 1000:f}")])
        assert times[0] == ns
        assert usable[0]
        assert nanoseconds([float(f"{Decimal(ns) / 1000:f}"), "none"])[0][0] == ns

    @given(st.integers(-(2**62) + 1, 2**62 - 1))
    def test_text(self, ns):
        assert nanoseconds_of_text(f"{Decimal(ns) / 1000:f}") == ns

    @pytest.mark.parametrize("quote", ["", '"'])
    def test_absolute(self, write, quote):
        """Absolute times, as numbers or strings, keep their nanoseconds, which a float could not hold."""
        text = compact([event(1), event(2)]).replace(
            b":1.125", f":{quote}1795304130234711.483{quote}".encode()
        )
        text = text.replace(b":2.125", f":{quote}1795304130234711.484{quote}".encode())
        times, _ = nanoseconds([each.ts for each in read_raw(write(text)).events])
        assert times.tolist() == [1795304130234711483, 1795304130234711484]

    def test_no_time(self):
        times, usable = nanoseconds([1.5, "x", "1e400", 1e300, "2.0005", "1.5e3", "9" * 19])
        assert times.tolist() == [1500, 0, 0, 0, 2001, 1_500_000, 0]
        assert usable.tolist() == [True, False, False, False, True, True, False]


class TestDamage:
    @pytest.mark.parametrize("layout", [pretty, compact])
    def test_a_truncated_file_keeps_the_events_before_its_end(self, write, layout, small_blocks):
        """All complete events before the end of a truncated file are kept, wherever the file is truncated."""
        text = layout([event(n, args={"x": [{"y": 1}, {"z": 2}]}) for n in range(30)])
        whole = [at for at in range(len(text)) if text[:at].count(b'"ph"')]
        for at in random.Random(1).sample(whole, 60):
            raw = read_raw(write(text[:at]))
            kept = [each.name for each in raw.events]
            assert kept == [f"op {n}" for n in range(len(kept))]
            closed = text[:at].count(b'"ph"') - len(kept)
            assert closed in (0, 1)
            assert raw.findings or text[at:].strip() in (b"}", b"")

    def test_gzip_breaks_off(self, write):
        data = gzip.compress(
            compact([event(n, name=random.Random(n).randbytes(20).hex()) for n in range(4000)])
        )
        raw = read_raw(write(data[: len(data) // 2]))
        assert 1000 < len(raw.events) < 4000
        assert any("breaks off" in finding for finding in raw.findings)

    def test_damage_in_a_large_gzip_file(self, write):
        """Nearly all events before the damage are kept."""
        text = compact([event(n, name=random.Random(n).randbytes(20).hex()) for n in range(4000)])
        data = bytearray(gzip.compress(text))
        data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
        raw = read_raw(write(bytes(data)))
        assert 1900 < len(raw.events) < 2200
        assert any("damaged as gzip" in finding for finding in raw.findings)

    def test_a_damaged_gzip_keeps_its_readable_part(self, write):
        """The readable part of a damaged gzip file is kept, and the damage reported."""
        data = bytearray(gzip.compress(compact([event(n) for n in range(20)])))
        data[-6] ^= 1
        raw = read_raw(write(bytes(data)))
        assert len(raw.events) == 20
        assert any("damaged as gzip" in finding for finding in raw.findings)

    @pytest.mark.parametrize("layout", [pretty, compact])
    def test_one_damaged_event_loses_only_itself(self, write, layout, small_blocks):
        """A damaged event loses only itself."""
        text = layout([event(n) for n in range(60)]).replace(b'"op 17"', b'"op 17" 5 !')
        raw = read_raw(write(text))
        assert [each.name for each in raw.events] == [f"op {n}" for n in range(60) if n != 17]
        assert raw.findings == ["1 damaged event ignored"]

    def test_a_damaged_name_next_to_nested_arguments(self, write):
        """Events with a list of objects in their arguments are read completely, also next to a
        damaged event.
        """
        text = compact([event(n, args={"a": [{"b": 1}, {"c": 2}, {"d": 3}]}) for n in range(6)])
        for damage in (b'"op 2" !', b'"op 2'):
            raw = read_raw(write(text.replace(b'"op 2"', damage)))
            assert [each.name for each in raw.events] == [f"op {n}" for n in range(6) if n != 2]

    def test_damaged_end(self, write):
        """A damaged last event does not affect the header behind it, and a damaged header does not
        affect the events.
        """
        text = compact([event(n) for n in range(6)], more=[1, [2]])
        raw = read_raw(write(text.replace(b'"op 5"', b'"op 5" !')))
        assert [each.name for each in raw.events] == [f"op {n}" for n in range(5)]
        assert raw.header["traceName"] == "t"
        raw = read_raw(write(text.replace(b'"traceName":"t"', b'"traceName":"t" !')))
        assert len(raw.events) == 6
        assert raw.findings == ["its metadata after its events is not JSON and was ignored"]

    def test_the_base_is_read_from_a_broken_head(self, write):
        """The base is read even if the rest of the head cannot be repaired."""
        text = compact([event(1)]).replace(b'"schemaVersion":1', b'"schemaVersion":{]')
        raw = read_raw(write(text))
        assert raw.header == {"baseTimeNanoseconds": BASE, "traceName": "t"}
        assert [each.name for each in raw.events] == ["op 1"]

    def test_many_nested_keys_end_the_search(self, write):
        """A head that repeats the key `traceEvents` many times ends the search."""
        inner = b",".join(b'"k%d":{"traceEvents":[]}' % number for number in range(500))
        raw = read_raw(write(b'{"config":{' + inner + b'},"traceEvents":[{"ph":"X"}]}'))
        assert raw.events == []
        assert any("no traceEvents" in finding for finding in raw.findings)

    def test_unusual_types(self, write):
        """A field of an unexpected type does not lose the event."""
        odd = [
            event(1, name=5, pid=1.5, ts="7", dur="0.25"),
            event(2, cat=None, id=True),
            event(3, tid={"a": 1}),
        ]
        raw = read_raw(write(compact(odd)))
        assert [(each.name, each.pid, each.ts, each.dur) for each in raw.events[:1]] == [
            ("5", "1.5", "7", "0.25")
        ]
        assert [each.name for each in raw.events] == ["5", "op 2", "op 3"]
        (finding,) = raw.findings
        assert finding.startswith("3 events were repaired")

    @pytest.mark.parametrize("number", ["inf", "-inf", "nan", "-nan", "NaN", "-Infinity"])
    def test_numbers_that_are_not_finite(self, write, number):
        """Kineto writes them where it does not know the device. The event is kept and the number is
        null. Strings are unchanged.
        """
        text = compact([event(n, args={"blocks per SM": 0.25, "who": "inf nan"}) for n in (1, 2)])
        raw = read_raw(write(text.replace(b"0.25", number.encode())))
        assert [msgspec.json.decode(each.args) for each in raw.events] == [
            {"blocks per SM": None, "who": "inf nan"}
        ] * 2
        (finding,) = raw.findings
        assert finding.startswith("2 events were repaired")

    @pytest.mark.parametrize("end", [b",", b", \n", b",{}", b", { }"])
    def test_an_end_without_an_event(self, write, end):
        """A comma or an empty object after the last event, as other tools write it, is no damage."""
        text = compact([event(1), event(2)]).replace(b"}]", b"}%b]" % end)
        raw = read_raw(write(text))
        assert [each.name for each in raw.events] == ["op 1", "op 2"]
        assert raw.findings == []

    def test_invalid_utf8_is_replaced_and_reported(self, write):
        """Invalid UTF-8 and control characters are replaced and counted."""
        raw = read_raw(
            write(compact([event(1, name="A"), event(2, name="B")]).replace(b'"A"', b'"\xff\x01"'))
        )
        assert [each.name for each in raw.events] == ["\ufffd ", "B"]
        assert [finding.split(":")[0] for finding in raw.findings] == [
            "1 event was repaired",
            "1 byte is not UTF-8",
        ]

    def test_invalid_utf8_in_arguments_is_replaced_and_reported(self, write, small_blocks):
        """A timeline copies arguments, so their invalid UTF-8 is replaced too. Valid characters are
        unchanged.
        """
        text = compact([event(n, args={"who": "zoë 東京", "what": "A"}) for n in range(50)])
        text = text.replace(b'"A"', b'"\xc3\xff\xe6\x9d"', 7)
        raw = read_raw(write(text))
        assert len(raw.events) == 50
        assert {msgspec.json.decode(each.args)["who"] for each in raw.events} == {"zoë 東京"}
        assert raw.findings == ["28 bytes are not UTF-8: replaced by U+FFFD"]

    @pytest.mark.parametrize("layout", [pretty, compact])
    def test_half_of_a_surrogate_pair(self, write, layout, small_blocks):
        """Half of a surrogate pair is replaced in names, arguments and the header, and loses no
        event. Complete pairs are unchanged.
        """
        events = [event(n, name="NAME", args={"KEY": "NAME"}) if n % 7 == 0 else event(n) for n in range(50)]
        text = layout(events, host_name="NAME").replace(b"NAME", rb"\ud83d\ude00 \udc80 \\ud800")
        raw = read_raw(write(text.replace(b"KEY", rb"\uD800")))
        assert len(raw.events) == 50
        sound = "😀 \ufffd \\ud800"
        assert {each.name for each in raw.events if each.ts % 7 < 1} == {sound}
        assert msgspec.json.decode(raw.events[0].args) == {"\ufffd": sound}
        assert raw.events[1].name == "op 1"
        assert raw.header["host_name"] == sound
        assert raw.findings == ["some strings contain half of a surrogate pair: replaced by U+FFFD"]

    def test_which_files_are_whole(self, write):
        """A file with missing events is not whole; a repaired file is."""
        text = compact([event(n) for n in range(20)])
        data = gzip.compress(text)
        files = {
            "whole": text,
            "repaired": text.replace(b"op 7", b"op \xff"),
            "damaged": text.replace(b'"op 7"', b'"op 7'),
            "broken off": text[:-100],
            "gzip": data[: len(data) // 2],
            "no trace": b"{}",
            "array": b'[{"ph":"X","args":{"a":1}},\n{"ph":"X","args":{"a":1}}',
            "array, comma": b'[{"ph":"X"},\n{"ph":"X"},\n',
            "array, broken off": b'[{"ph":"X"},\n{"ph":"X","args":{"a":1}',
            "array, broken off in a list": b'[{"ph":"X"},\n{"ph":"X","args":[{"a":1}]',
            "array, no event": b"[",
        }
        whole = {}
        for name, content in files.items():
            stream = TraceStream(write(content))
            for _ in stream:
                pass
            whole[name] = stream.whole
        assert [name for name in files if whole[name]] == ["whole", "repaired", "array", "array, comma"]

    @pytest.mark.parametrize(
        ("behind", "whole"),
        [
            (b'"traceEvents": [{"ph": "X"}]', False),
            (b'"a": 1, "traceEvents": [], "b": 2', False),
            (b'"a": {"traceEvents": [{"ph": "X"}]}', True),
        ],
    )
    def test_a_second_list_of_events(self, write, behind, whole):
        """JSON allows a key twice; a nested key of that name is another one."""
        stream = TraceStream(write(compact([event(n) for n in range(3)])[:-1] + b", " + behind + b"}"))
        assert sum(map(len, stream)) == 3
        assert stream.whole == whole
        said = ["has the key traceEvents twice: only the events of the first one are read"]
        assert stream.findings == ([] if whole else said)

    def test_a_second_trace_in_the_file(self, write):
        """It is not read, which is no problem of metadata."""
        text = compact([event(n) for n in range(3)])
        stream = TraceStream(write(gzip.compress(text) * 2))
        assert sum(map(len, stream)) == 3
        assert not stream.whole
        assert stream.findings == ["holds a second trace after the first one, which is not read: split it"]

    def test_zeros_at_the_end(self, write):
        """Some file systems fill the end of a file with zeros: nothing is missing."""
        raw = read_raw(write(compact([event(1)]) + b"\0" * 512))
        assert (len(raw.events), raw.header["traceName"], raw.findings) == (1, "t", [])

    def test_breaks_off_behind_the_events(self, write):
        """A missing closing brace is reported, because metadata after the events may be missing too."""
        text = json.dumps({"traceEvents": [event(1)]}).encode()
        assert read_raw(write(text)).findings == []
        assert read_raw(write(text[:-1])).findings == ["is truncated after its events"]

    @pytest.mark.parametrize(
        ("data", "told"),
        [
            (b"", "empty"),
            (b"  \n", "empty"),
            (b"hello", "is not a trace"),
            (b"\x00" * 100, "is not a trace"),
            (b"{}", "no traceEvents"),
            (b'{"traceEvents": 5}', "no traceEvents"),
            (b'{"traceEvents": [', "breaks off"),
            (b'{"traceEvents": [1, 2, 3]}', "damaged"),
            (b"\x1f\x8b", "truncated"),
            (b"\x1f\x8bgarbage that is no gzip", "damaged"),
            (b'{"traceEvents": [' + b"[" * 100_000, "breaks off"),
            (b'{"a":' * 100_000 + b'"traceEvents": [', "breaks off"),
            (b'[{"ph":"X","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}]", "damaged"),
            (b'[{"ph":"X","ts":' + b"9" * 1_000_000 + b"}]", "damaged"),
        ],
    )
    def test_hostile(self, write, data, told):
        raw = read_raw(write(data))
        assert raw.events == []
        assert any(told in finding for finding in raw.findings), raw.findings

    def test_a_missing_file(self, tmp_path):
        raw = read_raw(tmp_path / "no.json")
        assert raw.findings == ["cannot be read: No such file or directory"]

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        flips=st.lists(
            st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=8
        ),
        compressed=st.booleans(),
        cut=st.floats(0, 1),
    )
    def test_flipped_bits(self, write, flips, compressed, cut):
        """For any flipped bits, reading ends and returns only events."""
        text = pretty([event(n, args={"x": [{"y": n}]}) for n in range(20)])
        data = bytearray(gzip.compress(text, mtime=0) if compressed else text)
        for where, bit in flips:
            data[int(where * len(data))] ^= 1 << bit
        raw = read_raw(write(bytes(data[: int(cut * len(data)) + 1])))
        assert len(raw.events) <= 25
        times, usable = nanoseconds([each.ts for each in raw.events])
        assert len(times) == len(usable) == len(raw.events)

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=200))
    def test_arbitrary_bytes_never_raise(self, write, data):
        read_raw(write(b'{"traceEvents": [' + data))
        read_raw(write(b"[" + data))


class TestBounds:
    def test_a_gzip_bomb_is_read_up_to_the_bound(self, write):
        """A gzip bomb is read up to the limit, within the memory of a few blocks."""
        import zlib

        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        data = packer.compress(b'{"traceEvents": [')
        for _ in range(256):
            data += packer.compress(b" " * (1 << 20))
        path = write(data + packer.flush())
        assert path.stat().st_size < 1 << 20
        tracemalloc.start()
        try:
            raw = read_raw(path, limits=Limits(inflated_bytes=64 << 20, event_bytes=4 << 20))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert any("more than" in finding for finding in raw.findings)
        assert peak < 40 << 20

    def test_an_endless_event_is_skipped(self, write):
        """An event that does not end is skipped, and the next one is read."""
        text = (
            b'{"traceEvents": ['
            b'{"ph":"X","ts":' + b"1" * (3 << 20) + b"}," + json.dumps(event(2)).encode() + b"]}"
        )
        raw = read_raw(write(text), limits=Limits(event_bytes=1 << 20))
        assert [each.name for each in raw.events] == ["op 2"]
        assert raw.findings == ["1 damaged event ignored"]

    def test_text(self, write, monkeypatch):
        raw = read_raw(write(compact([event(n) for n in range(20)])), limits=Limits(inflated_bytes=500))
        assert 0 < len(raw.events) < 20
        assert "holds more than 500 bytes uncompressed: the rest is ignored" in raw.findings

    def test_too_much_text_after_the_events_is_ignored(self, write, small_blocks):
        text = compact([event(1)])[:-1] + b',"more":"' + b"x" * 100_000 + b'"}'
        raw = read_raw(write(text), limits=Limits(event_bytes=2000))
        assert [each.name for each in raw.events] == ["op 1"]
        assert raw.findings

    def test_batches(self, write, small_blocks):
        """A stream returns many batches. Its header is complete after the last one."""
        stream = TraceStream(write(compact([event(n) for n in range(100)])))
        batches = list(stream)
        assert len(batches) > 5
        assert sum(map(len, batches)) == 100
        assert stream.header["traceName"] == "t"

    def test_blocks_are_bounded(self, write):
        findings: list[str] = []
        path = write(gzip.compress(b"x" * 100_000))
        pieces = list(inflate.blocks(path, 1 << 30, findings, 1000))
        assert max(map(len, pieces)) <= 1000
        assert b"".join(pieces) == b"x" * 100_000
        assert findings == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.sampled_from("XiM"), "name": st.text(max_size=20), "ts": st.integers(0, 10**12)},
            optional={
                "args": st.recursive(
                    st.none() | st.text(max_size=8),
                    lambda inner: (
                        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                    ),
                    max_leaves=6,
                )
            },
        ),
        max_size=30,
    ),
    st.sampled_from([pretty, compact]),
    st.integers(64, 600),
)
def test_round_trip(tmp_path_factory, events, layout, block):
    """For any names, arguments and block sizes, the events are read as they were written."""
    path = tmp_path_factory.mktemp("t") / "t.json"
    path.write_bytes(layout(events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepprof.analysis.timeline.raw.BLOCK", block)
        raw = read_raw(path)
    assert [each.name for each in raw.events] == [each["name"] for each in events]
    for read, wrote in zip(raw.events, events, strict=True):
        assert (msgspec.json.decode(read.args) if bytes(read.args) else None) == wrote.get("args")
    assert raw.findings == []


@settings(max_examples=80, deadline=None)
@example({0}, compact, 1279, 3)
@given(
    st.sets(st.integers(0, 39), max_size=4),
    st.sampled_from([pretty, compact]),
    st.integers(64, 3000),
    st.integers(0, 3),
)
def test_damage_loses_only_the_damaged_events(tmp_path_factory, damaged, layout, block, nested):
    """For any block size and arguments, all intact events are read in order."""
    path = tmp_path_factory.mktemp("t") / "t.json"
    text = layout(
        [event(n, name=f"op-{n}-", args={"a": [{"b": m} for m in range(nested)]}) for n in range(40)]
    )
    for number in damaged:
        text = text.replace(b'"op-%d-"' % number, b'"op-%d-" !' % number)
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepprof.analysis.timeline.raw.BLOCK", block)
        raw = read_raw(path)
    assert [each.name for each in raw.events] == [f"op-{n}-" for n in range(40) if n not in damaged]
    told = f"{len(damaged)} damaged event{'s' * (len(damaged) > 1)} ignored"
    assert raw.findings == ([told] if damaged else [])
    assert raw.header["traceName"] == "t"
