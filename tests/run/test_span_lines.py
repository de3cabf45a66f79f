"""The lines of span files: all of them, or those of one step."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from counting import instructions_of
from hypothesis import given
from hypothesis import strategies as st
from runs import make_run, record, region, write_spans

from stepprof.run import span_lines as spanlines
from stepprof.run.span_lines import parse_span, span_lines


def lines_of(path, step=None):
    return list(span_lines(path, step))


def span(step, **more):
    return json.dumps({"name": "r", "step": step, "start": 1, **more}).encode() + b"\n"


@pytest.fixture
def small_blocks(monkeypatch):
    """Read files in blocks of 7 bytes, so that lines extend over several blocks."""
    monkeypatch.setattr(spanlines, "BLOCK_BYTES", 7)


class TestLines:
    @pytest.mark.parametrize(
        "content", [b"", b"\n", b"a\nbb\n", b"a\n\nb", b"a", b"a\r\nb\x85\x0c\n" * 9, b"x" * 50 + b"\ny\n"]
    )
    def test_all_lines_are_split_as_by_python(self, tmp_path, small_blocks, content):
        """The lines equal those that Python's own file object yields."""
        path = tmp_path / "f"
        path.write_bytes(content)
        with path.open("rb") as file:
            assert lines_of(path) == list(file)

    def test_only_lines_of_the_step_are_yielded(self, tmp_path, small_blocks):
        """The first line and the lines of the step are yielded once each, and
        no lines with similar numbers.
        """
        path = tmp_path / "f"
        lines = [b"header\n", span(1), span(2), span(12), span(2, attrs={"step": 2}), span(21), span(None)]
        compact = b'{"name":"r","step":2}\n'
        path.write_bytes(b"".join(lines) + compact)
        assert lines_of(path, 2) == [lines[0], lines[2], lines[4], compact]
        assert lines_of(path, 7) == [lines[0]]

    def test_an_incomplete_last_line(self, tmp_path):
        """An incomplete last line, which its process was writing, is yielded without a line break."""
        path = tmp_path / "f"
        path.write_bytes(b"header\n" + span(2) + span(2)[:-5])
        assert [line.endswith(b"\n") for line in lines_of(path, 2)] == [True, True, False]
        assert lines_of(path, 3) == [b"header\n"]

    def test_an_endless_line(self, tmp_path, small_blocks, monkeypatch):
        """A long line is yielded in pieces, so that the memory is limited by the longest permitted line."""
        monkeypatch.setattr(spanlines, "LONGEST_LINE", 60)
        path = tmp_path / "f"
        path.write_bytes(b"h\n" + b"x" * 200 + b"\n" + span(2))
        pieces = lines_of(path)
        assert b"".join(pieces) == path.read_bytes()
        assert max(map(len, pieces[:-1])) <= 67
        assert pieces[-1] == span(2)

    @given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 200), st.integers(0, 30))
    def test_no_span_of_a_step_is_missed(self, tmp_path_factory, steps, block, wanted):
        """All lines of a step are found, for any size of the blocks and any length of the lines."""
        path = tmp_path_factory.getbasetemp() / "spans.jsonl"
        lines = [span(step, attrs={"n": "x" * (step * 3)}) for step in steps]
        path.write_bytes(b"header\n" + b"".join(lines))
        before, spanlines.BLOCK_BYTES = spanlines.BLOCK_BYTES, block
        try:
            found = lines_of(path, wanted)
        finally:
            spanlines.BLOCK_BYTES = before
        assert found == [
            b"header\n",
            *(span for span, step in zip(lines, steps, strict=True) if step == wanted),
        ]

    def test_other_steps_cost_nothing(self, tmp_path):
        """Reading one step costs the same number of instructions with 10 and with
        1,000 lines of another step.
        """
        costs = []
        for others in (10, 10, 1000):  # the first call also compiles the pattern
            path = tmp_path / "f"
            path.write_bytes(b"header\n" + span(2) * 5 + span(3) * others)
            costs.append(instructions_of(lines_of, path, 2))
        assert costs[1] == costs[2]


class TestParse:
    @pytest.mark.parametrize(
        ("line", "found"),
        [
            (b'{"name": "a", "step": 1}\n', {"name": "a", "step": 1}),
            (b'{"name": "\\ud800"}', {"name": "\ufffd"}),
            (b'{"attrs": {"a": NaN, "b": 1e999}}', {"attrs": {"a": "NaN", "b": "1e999"}}),
            (b"[1]\n", None),
            (b"", None),
            (b'{"name": "\xff"}', None),
            (b'{"name": 1}', None),
            (b'{"start": -1}', None),
            (b'{"dur": 5000000000000000000}', None),
            (b'{"step": 1.5}', None),
            (b'{"role": []}', None),
            (b'{"thread": []}', None),
            (b'{"thread": [], "attrs": NaN}', None),
            (b"[" * 100_000, None),
        ],
    )  # fmt: skip
    def test_a_line_is_parsed(self, line, found):
        """A valid line is parsed as by Python's json. A damaged line, or a value
        out of its range, yields None.
        """
        assert parse_span(line) == found

    def test_without_msgspec_the_result_is_the_same(self, tmp_path):
        """Without msgspec, `ls`, `show` and `spans` print the same, because the base
        installation has only Python's json.
        """
        path = tmp_path / "runs"
        run = make_run(path)
        for rank in (0, 1):
            record(run, rank=rank, data=b"{}")
            write_spans(run, rank, *(region("update", 0.5 + rank, step=step) for step in (1, 2, 3)))
        code = (
            "import sys; sys.modules['msgspec'] = None\n"
            "from stepprof.cli.main import main\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        for arguments in (["ls"], ["show"], ["spans"], ["show", "--json"], ["spans", "--json"]):
            given = [*arguments, "--output-dir", str(path)]
            done = [
                subprocess.run([sys.executable, *how, *given], check=True, capture_output=True, text=True)
                for how in (["-m", "stepprof"], ["-c", code])
            ]
            assert done[0].stdout == done[1].stdout
            assert done[1].stderr == ""
