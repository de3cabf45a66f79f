"""A timeline as Chrome JSON has every event with every argument, in a form that viewers accept."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given, settings
from timelines import T0, chrome_events, crossings, make_source, sources

from stepprof.analysis.timeline import chrome
from stepprof.analysis.timeline.model import Alignment, Origin, Track
from stepprof.analysis.timeline.placement import Place

DAYS = 86_400 * 10**9 * 30


def written(*placed, facts=None):
    """Return a timeline of sources, written and read again."""
    data = chrome.head(T0, {})
    for index, source in enumerate(placed):
        data += b"".join(chrome.encode(source, Place(index, len(placed), base_ns=T0 - DAYS)))
    return chrome_events(gzip.compress(data + chrome.tail(facts or {})))


def of_phase(content, phase):
    return [event for event in content["traceEvents"] if event["ph"] == phase]


def nanoseconds(value):
    return int(value * 1000) + T0 - DAYS


def as_written(value, nested=False):
    """Return the value as it is written: a blank follows a backslash at the end of a string."""
    if nested:
        return json.dumps(as_written(value), sort_keys=True)
    if isinstance(value, dict):
        return {as_written(key): as_written(item) for key, item in value.items()}
    return f"{value} " if isinstance(value, str) and value.endswith("\\") else value


class TestSlices:
    @settings(max_examples=60, deadline=None)
    @given(sources())
    def test_every_slice_is_written_with_all_arguments(self, source):
        """Slices that cross, are empty or begin at the same time are all written, unchanged and
        without rounding.
        """
        slices = source.slices
        expected = Counter(
            (as_written(source.names[name]), as_written(source.categories[category]), start, duration)
            for name, category, start, duration in zip(
                slices.name.tolist(),
                slices.category.tolist(),
                slices.start.tolist(),
                slices.duration.tolist(),
                strict=True,
            )
        )
        events = of_phase(written(source), "X")
        assert expected == Counter(
            (each["name"], each["cat"], nanoseconds(each["ts"]), int(each["dur"] * 1000)) for each in events
        )
        assert sorted(as_written(json.loads(raw or b"{}"), nested=True) for raw in slices.args) == sorted(
            json.dumps(each["args"], sort_keys=True, default=float) for each in events
        )

    @settings(max_examples=60, deadline=None)
    @given(sources())
    def test_no_two_slices_of_one_thread_cross(self, source):
        """A viewer drops the second of two slices that cross. So no two slices of one thread cross
        in the file's order.
        """
        assert crossings(written(source)["traceEvents"]) == []

    def test_arguments_are_as_they_were(self):
        """Chrome JSON keeps arguments that `--format perfetto` omits. An empty object means no arguments."""
        raw = b'{"External id": 12345678901234567890, "x": [1.50, null],\n "y": {"z": "\xc3\xa9"}}'
        source = make_source([(0, 0, 5, "a", "cpu_op", raw), (0, 10, 5, "b", "cpu_op", None)])
        first, second = of_phase(written(source), "X")
        assert first["args"] == {
            "External id": 12345678901234567890,
            "x": [Decimal("1.50"), None],
            "y": {"z": "é"},
        }
        assert second["args"] == {}

    def test_no_string_ends_in_a_backslash(self):
        """Perfetto rejects the whole file if a name or argument ends in a backslash, so a blank is added."""
        source = make_source([(0, 0, 5, "C:\\", "c\\", b'{"path": "C:\\\\", "k\\\\": ["\\\\"], "n": 1}')])
        (event,) = of_phase(written(source), "X")
        assert event["name"] == "C:\\ "
        assert event["cat"] == "c\\ "
        assert event["args"] == {"path": "C:\\ ", "k\\ ": ["\\ "], "n": 1}

    def test_arguments_are_not_decoded_needlessly(self):
        """A backslash inside a string does not cause the arguments to be decoded and written anew."""
        raw = b'{"re": "\\\\d+", "n": 1.0000000000000000001}'
        data = b"".join(chrome.encode(make_source([(0, 0, 5, "a", "c", raw)]), Place(0, 1)))
        assert raw in data

    def test_blocks_of_slices_follow_each_other_without_a_gap(self, monkeypatch):
        """The blocks follow each other without a gap, also with times of different widths."""
        monkeypatch.setattr(chrome, "_BLOCK", 7)
        source = make_source(
            [(n % 2, n * 10 ** (n % 9), 5, f"n{n}") for n in range(50)],
            instants=[(0, n, f"i{n}") for n in range(20)],
            flows=[(0, 1, 0, 2)] * 16,
        )
        content = written(source)
        assert {each["name"] for each in of_phase(content, "X")} == {f"n{n}" for n in range(50)}
        assert {each["name"]: nanoseconds(each["ts"]) - T0 for each in of_phase(content, "X")} == {
            f"n{n}": n * 10 ** (n % 9) for n in range(50)
        }
        assert len(of_phase(content, "i")) == 20
        assert len({each["id"] for each in of_phase(content, "s")}) == 16


class TestTheRest:
    def test_ids_of_processes_threads_and_flows_belong_to_one_source(self):
        """Both files have the same numbers of processes, threads and flows. The timeline renumbers them."""
        source = make_source([(0, 0, 5, "a"), (1, 10, 5, "b")], flows=[(0, 1, 1, 11)])
        content = written(source, source)
        assert {each["pid"] for each in of_phase(content, "X")} == {1, 2}
        assert len({each["tid"] for each in of_phase(content, "X")}) == 4
        flows = of_phase(content, "s") + of_phase(content, "f")
        assert Counter(each["id"] for each in flows) == dict.fromkeys({each["id"] for each in flows}, 2)
        assert len({each["id"] for each in flows}) == 2
        assert all(isinstance(each["id"], int) and each["id"] < 2**53 for each in flows)

    def test_a_flow_ends_at_its_slice(self):
        """A flow keeps its time and ends on the lane of its slice. A flow without a slice is
        omitted, because a viewer counts it as an error.
        """
        source = make_source(
            [(0, 0, 10, "a"), (0, 5, 10, "b"), (1, 20, 5, "c")],
            flows=[(0, 12, 1, 21), (0, 17, 1, 21), (1, 22, 0, 3)],
        )
        content = written(source)
        lanes = {each["name"]: each["tid"] for each in of_phase(content, "X")}
        (begin,), (end,) = of_phase(content, "s"), of_phase(content, "f")
        assert (begin["tid"], nanoseconds(begin["ts"])) == (lanes["b"], T0 + 12)
        assert (end["tid"], nanoseconds(end["ts"]), end["bp"]) == (lanes["c"], T0 + 21, "e")

    def test_counters_of_one_name_stay_two(self):
        """Chrome JSON identifies a counter by name and process, so the second counter of a name
        gets a number.
        """
        tracks = [
            Track("counter", "queue", ("a",)),
            Track("counter", "queue", ("b",)),
            Track("counter", "batch\\", ("c",)),
        ]
        source = make_source(counters=[(0, 0, 1.5), (1, 0, 2), (2, 5, 0.1)], tracks=tracks)
        assert {(each["name"], each["args"]["value"]) for each in of_phase(written(source), "C")} == {
            ("queue", Decimal("1.5")),
            ("queue (2)", Decimal("2.0")),
            ("batch\\ ", Decimal("0.1")),
        }

    def test_instants(self):
        """An instant keeps its arguments and its thread."""
        (event,) = of_phase(written(make_source(instants=[(0, 7, "synced", b'{"version": 3}')])), "i")
        assert (event["name"], event["s"], nanoseconds(event["ts"]), event["args"]) == (
            "synced",
            "t",
            T0 + 7,
            {"version": 3},
        )

    def test_names_order_and_clock(self):
        """Processes and rows have readable names. Lanes are numbered, and samples are marked as samples."""
        tracks = [Track("sample", "s1", ("s1",)), Track("async", "requests", ("r",))]
        source = make_source(
            [(0, 0, 10, "x"), (1, 0, 10, "x"), (1, 5, 10, "x")],
            tracks=tracks,
            alignment=Alignment("unmeasured", 0, None),
            origin=Origin("engine", "e.json", "rollout", 1, 0, "node-2"),
        )
        named = [(each["name"], each["args"]) for each in of_phase(written(source), "M")]
        assert ("process_name", {"name": "rollout/0 worker 1 · node-2"}) in named
        assert ("process_labels", {"labels": "clock: unmeasured, error unknown, e.json"}) in named
        assert [args["name"] for kind, args in named if kind == "thread_name"] == [
            "sample s1",
            "requests",
            "requests (2)",
        ]
        order = [args["sort_index"] for kind, args in named if kind == "thread_sort_index"]
        assert order[1] < order[2] < order[0]

    def test_facts_about_the_whole(self):
        """Facts about the whole timeline follow the events, as viewers expect."""
        content = written(
            make_source([(0, 0, 5, "a")]), facts={"clock": "how", "error": float("nan"), "path": "C:\\"}
        )
        assert content["otherData"] == {"clock": "how", "error": "nan", "path": "C:\\ "}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("\ud800", b'"?"'),
        ({"a\\": ("b\\",)}, b'{"a\\\\ ":["b\\\\ "]}'),
        (float("inf"), b'"inf"'),
        (2.5, b"2.5"),
        ("é\n", '"é\\n"'.encode()),
    ],
)
def test_text_is_valid_for_every_viewer(value, expected):
    """Text is UTF-8 with finite numbers, and no string ends in a backslash."""
    assert chrome.text(value) == expected
    json.loads(expected)
