"""Complete events are read from the lines of Kineto's files, and give the same source as the parsed JSON."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepprof.analysis.report.process_groups import Communication
from stepprof.analysis.timeline.event_lines import EventLines
from stepprof.analysis.timeline.kineto import read
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.raw import TraceStream

HEAD = '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
TAIL = '\n  ],"traceName": "t" }'
ARGS = '"External id": 10865,"Input type": ["float", ""], "Input Dims": [[2, 4], []], "Ev Idx": %d'
GROUP = '"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,\n      "Seq": %d'

KERNEL = """
      "External id": 12,
      "queued": 0, "device": 0, "context": 1,
      "stream": 7, "correlation": %d,
      "grid": [8, 1, 1],
      "est. achieved occupancy %%": 12"""


def complete(number, name="aten::add", cat="cpu_op", args=ARGS, tid=8):
    """Return a complete event as torch 2.13 writes it."""
    return f"""  {{
    "ph": "X",
    "cat": "{cat}",
    "name": "{name}",
    "pid": 7,
    "tid": {tid},
    "ts": {4765219203709.104 + 3 * number:.3f},
    "dur": {number * 1.117:.3f}
    ,
    "args": {{
      {args % number}
    }}
  }}"""


def arrow(number, phase):
    """Return one end of a flow."""
    after = "\n    "
    return f"""  {{
    "ph": "{phase}",
    "id": {number},
    "pid": 7,
    "tid": 8,
    "ts": {4765219203709.104 + 3 * number:.3f},
    "cat": "ac2g",
    "name": "ac2g"{after}
  }}"""


def named(number):
    """Return the metadata event with a thread's name, on one line."""
    return f'  {{"ph": "M", "name": "thread_name", "pid": 7, "tid": {number}, "args": {{"name": "t"}}}}'


def text(count=60):
    """Return a trace of all these events in Kineto's layout."""
    events = [named(8), named(9)]
    for number in range(count):
        events.append(complete(number, f"aten::op{number % 7}", tid=8 + number % 2))
        if number % 5 == 0:
            events += [complete(number, "gemm", "kernel", KERNEL), arrow(number, "s"), arrow(number, "f")]
        if number % 9 == 0:
            events.append(complete(number, "nccl:all_reduce", "user_annotation", GROUP))
    return HEAD + ",\n".join(events) + TAIL


def source(path, *, lines, args=None):
    """Return the source of a trace, read by lines or as JSON."""
    stream = TraceStream(path, lines=lines)
    return read(stream, Origin("trace", path.name), Alignment("reference"), args=args or Communication())


def same(one, other):
    """Return whether two sources have the same content."""
    columns = [
        (each.slices.start, each.slices.duration, each.slices.name, each.slices.category, each.slices.track,
         each.flows.start, each.flows.start_track, each.flows.end, each.flows.end_track)
        for each in (one, other)
    ]  # fmt: skip
    return all(np.array_equal(*both) for both in zip(*columns, strict=True)) and all(
        getattr(one, name) == getattr(other, name)
        for name in ("names", "categories", "tracks", "findings", "metadata", "whole", "sound")
    ) and (one.slices.args or []) == (other.slices.args or [])  # fmt: skip


def read_by_lines(path):
    """Return how many events were read as lines, and how many as JSON."""
    lines = others = 0
    for batch in TraceStream(path, lines=True):
        if isinstance(batch, EventLines):
            lines += len(batch)
        else:
            others += len(batch)
    return lines, others


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("stepprof.analysis.timeline.raw.BLOCK", 3000)


@pytest.fixture
def write(tmp_path):
    def write(content, name="t.json.gz"):
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.mark.usefixtures("small_blocks")
class TestSameSource:
    def test_all_kinds_of_events(self, write):
        """Names, times, tracks, flows and the arguments of collectives are equal."""
        path = write(text())
        lines, others = read_by_lines(path)
        assert lines > 50 > others
        found = source(path, lines=True)
        assert same(found, source(path, lines=False))
        assert found.whole
        assert b'"Seq": 9' in found.slices.args[found.slices.name.tolist().index(found.names.index("nccl:all_reduce"), 5)]  # fmt: skip

    @pytest.mark.parametrize(
        "name",
        ["a \\\"quoted\\\" name", "ä 漢字", "\\ud83d\\ude00", "half \\ud800", "x" * 5000, "{\\n  },"],
        ids=["quotes", "characters", "pair", "half", "long", "braces"],
    )  # fmt: skip
    def test_names(self, write, name):
        path = write(text().replace("aten::op3", name))
        assert same(source(path, lines=True), source(path, lines=False))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"dur": 3.351', '"dur": 3.3'),
            ('"dur": 3.351', '"dur": 3351'),
            ('"dur": 3.351', '"dur": -3.351'),
            ('"dur": 3.351', '"dur": 33510000000000000000.000'),
            ('"tid": 9,', '"tid": "nine",'),
            ('"tid": 9,', '"tid": 9, "ts": 5,'),
            ('    "cat": "cpu_op",\n', ""),
            ('"ph": "X"', '"ph":"X"'),
            (",\n    {", ",\n\n    {"),
            ("\n", "\r\n"),
        ],
    )
    def test_other_layouts(self, write, old, new):
        """Layouts that Kineto does not write are read as JSON."""
        content = text()
        assert old in content or old.startswith(",")
        path = write(content.replace(old, new))
        assert same(source(path, lines=True), source(path, lines=False))

    def test_events_without_arguments(self, write):
        content = text()
        path = write(
            content.replace("    ,\n" + content.split("    ,\n")[3].split("  }\n")[0] + "  }", "    \n")
        )
        assert same(source(path, lines=True), source(path, lines=False))

    def test_many_names(self, write, monkeypatch):
        """The reader remembers a limited number of event heads, and reads events with other heads as JSON."""
        monkeypatch.setattr("stepprof.analysis.timeline.event_lines._MOST_KINDS", 20)
        path = write(HEAD + ",\n".join(complete(n, f"op {n}") for n in range(90)) + TAIL)
        lines, others = read_by_lines(path)
        assert lines <= 20 < others
        assert same(source(path, lines=True), source(path, lines=False))

    @pytest.mark.torch
    def test_torch(self, write, tmp_path):
        """Most events of the installed torch are read by lines."""
        import torch

        with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
            for _ in range(20):
                torch.nn.functional.linear(
                    torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
                ).sum().backward()
        profiler.export_chrome_trace(str(tmp_path / "torch.json"))
        path = write((tmp_path / "torch.json").read_bytes())
        lines, others = read_by_lines(path)
        assert lines > others
        assert same(source(path, lines=True), source(path, lines=False))


@pytest.mark.usefixtures("small_blocks")
class TestDamage:
    @settings(max_examples=150, deadline=None)
    @example(0)
    @given(st.integers(0, 1 << 32))
    def test_outside_of_arguments(self, tmp_path_factory, seed):
        """With either reader, damage loses the same events and is reported in the same words."""
        pick = random.Random(seed)
        lines = text().splitlines(keepends=True)
        for _ in range(pick.randint(1, 3)):
            at = pick.randrange(5, len(lines))
            if not lines[at].startswith("      "):
                where = pick.randrange(len(lines[at]))
                put = pick.choice(
                    ["", "\n", "\n" * 7, "}", "{", "]", ",", '"', ":", "x", "9", ".", " ", "},\n  {\n", "\0"]
                )
                lines[at] = lines[at][:where] + put + lines[at][where + 1 :]
        path = tmp_path_factory.mktemp("t") / "t.json.gz"
        path.write_bytes(gzip.compress("".join(lines).encode()))
        assert same(source(path, lines=True), source(path, lines=False))

    def test_breaks_off(self, write):
        path = write(text()[:-2000])
        assert same(source(path, lines=True), source(path, lines=False))
        data = write(text()).read_bytes()
        path = write(b"")
        path.write_bytes(data[:-300])
        assert same(source(path, lines=True), source(path, lines=False))

    def test_arguments(self, write):
        """In a file without a checksum, arguments that are not JSON lose their event. In a gzip
        file, which has one, they lose nothing.
        """
        content = text().replace('"Ev Idx": 13', '"Ev Idx": -none')
        compressed = source(write(content), lines=True)
        plain = source(write(content, "t.json"), lines=True)
        whole = source(write(text()), lines=True)
        assert plain.findings == ["1 damaged event ignored"]
        assert not plain.whole
        assert len(plain.slices) == len(whole.slices) - 1
        assert same(compressed, whole)
        assert source(write(content), lines=False).findings == plain.findings

    def test_of_collectives(self, write):
        """If the arguments of a collective are not JSON, its event is still read."""
        content = text().replace('"Seq": 9', '"Seq": -nan')
        found = source(write(content), lines=True)
        assert len(found.slices) == len(source(write(text()), lines=True).slices)


def test_json_text_is_what_torch_writes():
    """The trace that these tests use is valid JSON."""
    assert len(json.loads(text())["traceEvents"]) > 60
