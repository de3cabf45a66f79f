"""The report's page as a file: its size, its content, and the resources that it may load. No text
of a trace is interpreted as markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import make_comparison, make_report

import stepprof.analysis.report.page
from stepprof.analysis.report import gantt as bars
from stepprof.analysis.report.gantt import pack_gantt
from stepprof.analysis.report.page import render
from stepprof.analysis.report.schema import Bar, Comparison, Finding, GanttRow, Problem, Report

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
MEGABYTE = 1_000_000


def payload(page):
    """Return the data of the page, decoded as its script does: the table and the columns."""
    (text,) = re.findall(r'id="data">([^<]*)</script>', page)
    raw = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", raw)
    table = json.loads(raw[4 : 4 + length])
    columns, offset = {}, 4 + length
    for name, size in table["columns"]:
        columns[name] = np.frombuffer(raw, "<u4", size, offset)
        offset += size * 4
    assert offset == len(raw)
    return table, columns


def unpacked(gantt, columns):
    """Return rows of (label, bars as (start, seconds, name, role, depth), busy) from the packed data."""
    rows, at, busy_at = [], 0, 0
    for row in gantt["rows"]:
        found = []
        for depth, number in enumerate(row["lanes"]):
            for i in range(at, at + number):
                start = gantt["origin"] + columns["start"][i] * gantt["tick"]
                length = columns["length"][i] * gantt["tick"]
                found.append(
                    (
                        start,
                        length,
                        gantt["names"][columns["name"][i]],
                        gantt["roles"][columns["role"][i]],
                        depth,
                    )
                )
            at += number
        stretches = range(busy_at, busy_at + row["busy"])
        busy = [
            (
                gantt["origin"] + columns["busy_start"][i] * gantt["tick"],
                columns["busy_length"][i] * gantt["tick"],
            )
            for i in stretches
        ]
        busy_at += row["busy"]
        rows.append((row["label"], found, busy))
    return rows  # fmt: skip


class TestPage:
    def test_64_ranks_are_under_3_megabytes(self):
        """The page has as many regions, as deep, as the analysis returns at most."""
        report = make_report(64, 4, micro_batches=120)
        assert sum(len(row.bars) for row in report.gantt) > 23_000
        assert len(render(report)) < 3 * MEGABYTE

    def test_more_bars_than_the_maximum_do_not_enlarge_the_page(self):
        """Of more bars than the page may have, the shortest are omitted, and the page states their number."""
        row = make_report(1).gantt[-1]
        many = [
            Bar(i * 1e-5, 1e-6 * (1 + i % 997), f"r{i % 50}", "actor", 0) for i in range(bars.MOST_BARS * 2)
        ]
        report = msgspec.structs.replace(make_report(1), gantt=[msgspec.structs.replace(row, bars=many)])
        page = render(report)
        table, columns = payload(page)
        kept = len(columns["start"])
        assert len(page) < 3 * MEGABYTE
        assert 0 < kept <= bars.MOST_BARS
        assert table["gantt"]["left_out"] == len(many) - kept
        longest_left_out = sorted((bar.seconds for bar in many), reverse=True)[kept]
        assert columns["length"].min() * table["gantt"]["tick"] >= longest_left_out - table["gantt"]["tick"]

    def test_the_policy_lists_the_inline_digests_and_allows_no_request(self):
        """The policy allows inline pictures and no other source. Its digests are those of the
        inline script and style.
        """
        page = render(make_report(2))
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
        assert rules == {
            "default-src": "'none'",
            "script-src": f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
            "style-src": f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        without_namespace = page.replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://", without_namespace) == []

    @pytest.mark.parametrize("word", ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function"])  # fmt: skip
    def test_the_script_cannot_turn_text_into_markup(self, word):
        assert word not in render(make_report(1))

    def test_no_trace_data_is_in_the_markup(self):
        """If every string of a report is hostile, the page has the same markup as any other, except
        for the data.
        """
        report = make_report(2)
        hostile = msgspec.structs.replace(
            report,
            run_id=HOSTILE,
            findings=[Finding(HOSTILE, HOSTILE, 1.0)],
            problems=[Problem(HOSTILE, HOSTILE)],
            gantt=[GanttRow(HOSTILE, HOSTILE, HOSTILE, [Bar(0.0, 1.0, HOSTILE, HOSTILE, 0)], [])],
        )
        pages = [re.sub(r'id="data">[^<]*<', "", render(each)) for each in (report, hostile)]
        assert pages[0] == pages[1]
        assert payload(render(hostile))[0]["content"]["run_id"] == HOSTILE

    def test_the_page_contains_the_report(self):
        """The page has the report as JSON of its schema. Unpacked bars differ by less than one tick."""
        report = make_report(3, 1)
        table, columns = payload(render(report))
        assert table["kind"] == "report"
        content = msgspec.convert({**table["content"], "gantt": []}, Report)
        assert content == msgspec.structs.replace(report, gantt=[])
        for row, (label, found, busy) in zip(report.gantt, unpacked(table["gantt"], columns), strict=True):
            assert label == row.label
            expected = sorted(row.bars, key=lambda bar: (bar.depth, bar.start))
            assert [each[2:] for each in found] == [(bar.name, bar.role, bar.depth) for bar in expected]
            assert [each[:2] for each in found] == [
                pytest.approx((bar.start, bar.seconds), abs=1e-6) for bar in expected
            ]
            assert busy == [pytest.approx(stretch, abs=1e-6) for stretch in sorted(row.busy)]

    def test_the_page_contains_a_comparison(self):
        table, columns = payload(render(make_comparison()))
        assert (table["kind"], columns) == ("comparison", {})
        assert msgspec.convert(table["content"], Comparison) == make_comparison()

    def test_the_page_contains_every_asset(self):
        """Every file next to the template is used in the page, and pyproject.toml includes every file."""
        page = render(make_report(1))
        assets = Path(stepprof.analysis.report.page.__file__).with_name("assets")
        texts = {file.name: file.read_text(encoding="utf-8") for file in assets.iterdir()}
        assert {name for name, text in texts.items() if text not in page} == {"template.html"}
        patterns = re.findall(
            r'"stepprof\.analysis\.report\.assets" = \["([^"]+)"\]',
            (Path(__file__).parents[3] / "pyproject.toml").read_text(),
        )
        assert patterns == ["*"]

    def test_an_empty_report_has_a_page(self):
        table, columns = payload(render(Report("r", 1, 0, 0.0, "nothing was read", None)))
        assert table["gantt"]["rows"] == []
        assert sum(map(len, columns.values())) == 0


lengths = st.floats(0, 1e4)
some_bars = st.lists(
    st.builds(Bar, st.floats(-100, 1e4), lengths, st.text(max_size=5), st.sampled_from([None, "a", "b"]), st.integers(0, 4)),
    max_size=30,
)  # fmt: skip


class TestPacking:
    @settings(max_examples=80, deadline=None)
    @given(st.lists(some_bars, max_size=4), lengths)
    def test_every_bar_is_unpacked(self, rows, seconds):
        """Each bar is in its row and lane, sorted by start, and differs by few ticks, also before
        the start of the step.
        """
        table, columns = pack_gantt(
            [GanttRow(str(i), None, "rank", row) for i, row in enumerate(rows)], seconds
        )
        tick = table["tick"]
        assert tick <= max(1e-6, 3e4 / 2**31)
        for row, (_, found, _) in zip(rows, unpacked(table, dict(columns)), strict=True):
            assert sorted((name, role, depth) for _, _, name, role, depth in found if role) == sorted(
                (bar.name, bar.role, bar.depth) for bar in row if bar.role
            )
            places = sorted((depth, start) for start, _, _, _, depth in found)
            assert places == [(depth, start) for start, _, _, _, depth in found]
            assert [depth for depth, _ in places] == sorted(bar.depth for bar in row)
            expected = sorted((bar.depth, bar.start) for bar in row)
            assert [start for _, start in places] == pytest.approx(
                [start for _, start in expected], abs=2 * tick
            )
            assert sum(each[1] for each in found) == pytest.approx(
                sum(bar.seconds for bar in row), abs=tick * (1 + len(row))
            )
