"""Test the layout of the report's page in a real browser: the first screen, narrow pages, paper,
and places of findings.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from chromium import Chromium, chromium
from reports import make_comparison, make_report

from stepprof.analysis.report.page import render
from stepprof.analysis.report.schema import (
    Bar,
    Comparison,
    Finding,
    GanttRow,
    Part,
    PathSegment,
    Report,
    TimeOf,
)

READY = "document.documentElement !== null && document.documentElement.dataset.ready === 'yes'"
SETTLED = (
    "new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 100))"
)
LONG = "s3://bucket/a-rather-long-folder-name/" * 6


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser: Chromium) -> Iterator[Chromium]:
    """Return the browser. A console message of the page fails the test."""
    browser.messages.clear()
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    yield browser
    assert browser.messages == []


def show(page: Chromium, folder: Path, content: Report | Comparison, width: int, height: int = 800) -> None:
    """Load a page in a window of the given size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    file = folder / "report.html"
    file.write_text(render(content), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for(READY, 20)
    page.evaluate(SETTLED)


def regions_only() -> Report:
    """Return the report of a step without roles: two regions one after the other, of which the
    second has a finding.
    """
    bars = [
        Bar(0.0, 4.0, "step", None, 0), Bar(0.0, 1.0, "load", None, 1), Bar(1.0, 3.0, "train", None, 1), Bar(1.5, 1.0, "forward", None, 2),
    ]  # fmt: skip
    each = [TimeOf(None, name, seconds, seconds / 4, []) for name, seconds in (("train", 3.0), ("load", 1.0), ("forward", 1.0))]  # fmt: skip
    path = [PathSegment("rank 0", 0.0, 1.0, "work", None, ["load"], 0), PathSegment("rank 0", 1.0, 3.0, "work", None, ["train", "forward"], 1)]  # fmt: skip
    finding = Finding("rank 0 slept in `train`", "sleep", 1.0, process="rank 0", start=1.5, end=2.5, why="its stacks", advice="wake it", saves=1.0, assumption="it does not sleep")  # fmt: skip
    return Report(
        "r", 3, 0, 4.0, "one clock", 0, findings=[Finding("the step took 4.00 s: `train` 75%, `load` 25%", "step", 4.0), finding],
        gantt=[GanttRow("rank 0", "h", "rank", bars)], roles=[TimeOf(None, None, 4.0, 1.0, [])], regions=each, path=path,
        parts=[Part(name, None, name, took, took / 4, took, took / 4, [(start, took)]) for name, start, took in (("load", 0.0, 1.0), ("train", 1.0, 3.0))],
    )  # fmt: skip


def worst() -> Report:
    """Return a report with names and paths as long as those of real jobs."""
    report = make_report(24, 2)
    sources = [msgspec.structs.replace(each, path=f"step-000012/{LONG}") for each in report.sources]
    regions = [
        msgspec.structs.replace(each, region=f"{each.region}_{'of_everything_' * 6}")
        for each in report.regions
    ]
    finding = Finding(
        f"the data loader read {LONG} for 3 s", "io", 3.0, why=LONG, advice=LONG, start=1.0, end=2.0
    )
    return msgspec.structs.replace(report, run_id="run-" + "x" * 120, sources=sources, regions=regions, findings=[report.findings[0], finding, *report.findings[1:]])  # fmt: skip


# texts of one chart that overlap
OVERLAPS = """[...document.querySelectorAll('svg.chart')].flatMap(chart => {
    const texts = [...chart.querySelectorAll('text')].filter(each => each.textContent.trim()).map(each => [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.width);
    return texts.flatMap(([one, a], at) => texts.slice(at + 1).filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([other]) => `${chart.getAttribute('aria-label').slice(0, 40)}: ${one} / ${other}`));
}).concat([...document.querySelectorAll('.axis')].flatMap(axis => {
    const spans = [...axis.children].map(each => each.getBoundingClientRect());
    return spans.slice(1).filter((box, at) => box.left < spans[at].right + 2).map(() => 'axis of the ribbon');
}))"""
# texts of charts that extend beyond their chart
CUT = """[...document.querySelectorAll('svg.chart')].flatMap(chart => {
    const room = chart.getBoundingClientRect();
    return [...chart.querySelectorAll('text')].map(each => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width && (box.left < room.left - 6 || box.right > room.right + 6)).map(([each]) => `${chart.getAttribute('aria-label').slice(0, 40)}: ${each.textContent}`);
})"""
BELOW = "Math.max(...[...document.querySelectorAll(%r)].map(each => each.getBoundingClientRect().bottom))"


class TestFirstScreen:
    @pytest.mark.parametrize("width", [1280, 400])
    @pytest.mark.parametrize("report", [make_report(64, 4), regions_only()], ids=["roles", "regions"])
    def test_the_first_screen_has_the_first_finding(
        self, page: Chromium, tmp_path: Path, width: int, report: Report
    ) -> None:
        """The first 800 pixels contain the sentence, the bar of the step, and the first finding
        with why, try and gain.
        """
        show(page, tmp_path, report, width)
        for what in ("h1", ".step-bar", "#findings > li:first-child .reason"):
            assert 0 < page.evaluate(BELOW % what) <= 800, what
        shown = page.evaluate(
            "[...document.querySelectorAll('#findings > li:first-child .reason b')].map(e => e.textContent)"
        )
        assert shown == ["why", "try", "gain"]

    def test_findings_that_do_not_stand_out_are_behind_a_button(self, page: Chromium, tmp_path: Path) -> None:
        """If nothing stands out, the page says so and shows the findings with seconds after a click only."""
        step, slept = regions_only().findings
        quiet = Finding("nothing stands out: the only finding is 1.0 s, 3% of the step", "quiet")
        lost = Finding("the capture of rank 1 was lost", "coverage")
        show(
            page,
            tmp_path,
            msgspec.structs.replace(regions_only(), findings=[step, quiet, lost, slept]),
            1280,
        )
        shown = "[...document.querySelectorAll('#findings .text')].filter(e => e.offsetParent).map(e => e.textContent)"
        first = [
            "Nothing stands out: the only finding is 1.0 s, 3% of the step",
            "The capture of rank 1 was lost",
        ]
        assert page.evaluate(shown) == first
        assert page.evaluate("document.querySelector('#findings button').textContent") == "Show 1 finding"
        page.evaluate("document.querySelector('#findings button').click()")
        assert page.evaluate(shown) == [*first, "Rank 0 slept in train"]
        assert page.evaluate("document.querySelector('#findings button')") is None


class TestNarrow:
    @pytest.mark.parametrize("width", [360, 400, 600, 1280])
    @pytest.mark.parametrize("content", [make_report(2), make_report(64, 4), worst(), regions_only(), make_comparison()], ids=["2 ranks", "64 ranks", "long names", "regions", "comparison"])  # fmt: skip
    def test_the_narrow_page_has_no_overlap_and_no_sideways_scrolling(
        self, page: Chromium, tmp_path: Path, width: int, content: Report | Comparison
    ) -> None:
        """With all details open, no text overlaps or is cut, and the page does not scroll sideways."""
        show(page, tmp_path, content, width)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        page.evaluate(SETTLED)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(CUT) == []

    def test_labels_of_ranks_are_distinct(self, page: Chromium, tmp_path: Path) -> None:
        """No two labels of a chart are the same, even if they are shortened to 9 characters."""
        show(page, tmp_path, make_report(12, 2), 400)
        labels = page.evaluate(
            "[...document.querySelectorAll('#idle svg text.label')].map(e => e.textContent)"
        )
        assert len(labels) == 12 == len(set(labels))
        names = "['actor rank 17', 'actor rank 18', 'a-very-long-role-name rank 1000', 'a-very-long-role-name rank 1001']"
        short = page.evaluate(f"{names}.map(each => shortenName(each, 9))")
        assert len(set(short)) == 4
        assert all(len(each) <= 9 for each in short)

    def test_tables_show_their_row_names_without_scrolling(self, page: Chromium, tmp_path: Path) -> None:
        """The region tree and the path show names and the first figure without scrolling. Names of
        regions break after slashes.
        """
        report = make_report(4)
        show(page, tmp_path, report, 400)
        for table, most in (("#tree .tree", 3), ("#path .card.long table", 3)):
            right = page.evaluate(
                f"Math.max(...[...document.querySelectorAll('{table} tr')].flatMap(row => [...row.cells].filter(cell => cell.offsetWidth).slice(0, {most}).map(cell => cell.getBoundingClientRect().right)))"
            )
            assert right <= 400, table
        breaks = "[...document.querySelectorAll('#path td.name')].map(cell => cell.innerHTML)"
        assert "update_actor/<wbr>forward_backward" in page.evaluate(breaks)

    def test_a_long_path_wraps(self, page: Chromium, tmp_path: Path) -> None:
        """A long path wraps into few lines: no row of the sources reaches 250 pixels."""
        show(page, tmp_path, worst(), 400)
        assert (
            page.evaluate(
                "Math.max(...[...document.querySelectorAll('#sources tbody tr')].map(e => e.getBoundingClientRect().height))"
            )
            < 250
        )


class TestPlaces:
    def test_a_finding_leads_to_its_stretch(self, page: Chromium, tmp_path: Path) -> None:
        """A click on the finding, or on its bracket below the bar, zooms the timeline to its
        stretch and opens its row.
        """
        report = make_report(64, 4)
        show(page, tmp_path, report, 1280)
        finding = report.findings[1]
        for click in (
            "document.querySelector('#findings .place').click()",
            "[...document.querySelectorAll('.bracket')].find(e => e.textContent === '1').dispatchEvent(new MouseEvent('click', {cancelable: true}))",
        ):
            page.evaluate("document.getElementById('gantt').chart.show(0, 1e9)")
            page.evaluate(click)
            page.evaluate(SETTLED)
            first, last, row = page.evaluate(
                "(({ from, to, data, place }) => [from, to, data.rows.find(row => row.label === place.process).open])(document.getElementById('gantt').chart)"
            )
            assert first < finding.start < finding.end < last < report.seconds
            assert last - first < 3 * (finding.end - finding.start)
            assert row
            top = page.evaluate("document.getElementById('timeline').getBoundingClientRect().top")
            assert abs(top) < 200

    def test_a_finding_without_a_place_leads_to_its_section(self, page: Chromium, tmp_path: Path) -> None:
        show(page, tmp_path, make_report(4), 1280)
        links = page.evaluate(
            "[...document.querySelectorAll('#findings li')].map(li => [...li.querySelectorAll('a')].map(a => a.getAttribute('href')))"
        )
        assert ["#rollout"] in [each[-1:] for each in links]
        ids = page.evaluate("[...document.querySelectorAll('section.part')].map(e => `#${e.id}`)")
        assert {href for each in links for href in each} <= set(ids)

    def test_brackets_that_do_not_overlap_share_a_line(self, page: Chromium, tmp_path: Path) -> None:
        """Brackets share lines in any order of the findings. Here 3 separate stretches need one
        line, and one that spans them needs a second.
        """
        report = regions_only()
        stretches = [(3.0, 3.2), (0.2, 0.4), (1.5, 2.5), (0.1, 3.9)]
        placed = [
            msgspec.structs.replace(report.findings[1], start=start, end=end) for start, end in stretches
        ]
        show(page, tmp_path, msgspec.structs.replace(report, findings=[report.findings[0], *placed]), 1280)
        lines = page.evaluate(
            "[...document.querySelectorAll('.bracket path:not(.between)')].map(e => Math.round(e.getBoundingClientRect().top))"
        )
        assert len(lines) == 4
        assert len(set(lines)) == 2

    def test_numbers_on_the_bar_are_those_of_the_findings(self, page: Chromium, tmp_path: Path) -> None:
        show(page, tmp_path, make_report(4), 1280)
        on_bar = page.evaluate("[...document.querySelectorAll('.bracket text')].map(e => e.textContent)")
        in_list = page.evaluate("[...document.querySelectorAll('#findings .at')].map(e => e.textContent)")
        assert sorted(on_bar) == in_list == ["1", "2"]


class TestParts:
    def test_regions_take_the_place_of_roles(self, page: Chromium, tmp_path: Path) -> None:
        """If a step has no roles, its bar, the strips and the legend of the timeline show regions,
        each with its own colour.
        """
        show(page, tmp_path, regions_only(), 1280)
        assert page.evaluate(
            "[...document.querySelectorAll('.step-bar text.on')].map(e => e.textContent)"
        ) == ["load", "train"]
        assert page.evaluate("[...document.querySelectorAll('.ribbon .name')].map(e => e.textContent)") == [
            "load",
            "train",
        ]
        legend = page.evaluate("document.querySelector('#timeline .legend').innerText")
        assert "load" in legend
        assert "train" in legend
        colours = page.evaluate(
            "[...document.querySelectorAll('.step-bar rect')].map(e => getComputedStyle(e).fill)"
        )
        assert len(set(colours)) == 2
        parts = page.evaluate("[...document.getElementById('gantt').chart.data.columns.part]")
        assert parts == [
            2,
            0,
            1,
            1,
        ]  # the window has no part; an inner region has the part of the outer one

    def test_slack_is_with_the_critical_path(self, page: Chromium, tmp_path: Path) -> None:
        """The slack is in the section of the critical path, even if no path runs through all hosts."""
        report = make_report(4)
        titles = "[...document.querySelectorAll('#%s h3')].map(e => e.textContent)"
        for content in (report, msgspec.structs.replace(report, islands=report.islands * 2)):
            show(page, tmp_path, content, 1280)
            assert "Slack" in page.evaluate(titles % "path")
            assert "Slack" not in page.evaluate(titles % "ranks")

    def test_the_neighbours_are_drawn(self, page: Chromium, tmp_path: Path) -> None:
        """Each row has a bar for each step, and this step is marked."""
        report = make_report(4)
        show(page, tmp_path, report, 1280)
        bars = "document.querySelectorAll('#neighbours .strip')[%d].querySelectorAll('rect:not(.hit)').length"
        assert page.evaluate(bars % 0) == 40
        assert page.evaluate(bars % 1) == 32  # one in five steps has no rollout
        assert (
            page.evaluate("document.querySelectorAll('#neighbours rect[fill=\"var(--accent)\"]').length") == 5
        )
        assert "longer than usual" in page.evaluate("document.getElementById('neighbours').innerText")


class TestJob:
    def test_the_job_line_shows_the_known_facts(self, page: Chromium, tmp_path: Path) -> None:
        """One line shows the main facts. A click shows the command and the rest."""
        report = make_report(4)
        show(page, tmp_path, report, 1280)
        line = page.evaluate("document.querySelector('.job summary').innerText")
        assert "Qwen/Qwen3-8B · 4 ranks · torch 2.9.1+cu128" in line
        page.evaluate("document.querySelector('.job summary').click()")
        facts = page.evaluate("document.querySelector('.job dl').innerText")
        assert " ".join(report.job.command) in facts
        assert "ray 2.52.1" in facts

    def test_an_unknown_job_has_no_line(self, page: Chromium, tmp_path: Path) -> None:
        show(page, tmp_path, regions_only(), 1280)
        assert page.evaluate("document.querySelector('.job')") is None


class TestPaper:
    WIDTH = 703
    """The pixels between the margins of A4."""

    def paper(self, page: Chromium) -> None:
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=self.WIDTH,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.call("Emulation.setEmulatedMedia", media="print", features=[])
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.evaluate(SETTLED)

    @pytest.mark.parametrize("content", [make_report(40, 1), worst(), regions_only()], ids=["40 ranks", "long names", "regions"])  # fmt: skip
    def test_the_printed_page_is_complete(self, page: Chromium, tmp_path: Path, content: Report) -> None:
        """Everything fits within the width of the paper, and no box hides a part of its content.
        All sections that are folded on the screen are open.
        """
        show(page, tmp_path, content, 1280)
        self.paper(page)
        wide = page.evaluate(
            f"[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > {self.WIDTH + 1}).map(e => `${{e.tagName}} ${{e.getAttribute('class')}} ${{e.textContent.slice(0, 40)}}`)"
        )
        assert wide == []
        hidden = page.evaluate(
            "[...document.querySelectorAll('.card, .wrap, .gantt, .heads, .heads li, section, dl')].filter(e => getComputedStyle(e).overflow !== 'visible' && (e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1)).map(e => e.className)"
        )
        assert hidden == []
        assert page.evaluate("[...document.querySelectorAll('details')].every(e => e.open)")
        assert page.evaluate(OVERLAPS) == []

    def test_a_long_timeline_ends_pages_between_its_rows(self, page: Chromium, tmp_path: Path) -> None:
        """The timeline is printed in pieces of less than a page. Together they contain every row,
        and each piece has the axis.
        """
        show(page, tmp_path, make_report(100, 1), 1280)
        self.paper(page)
        shown = page.evaluate(
            "[...document.querySelectorAll('.paper canvas')].map(e => e.getBoundingClientRect().height)"
        )
        drawn = page.evaluate("[...document.querySelectorAll('.paper canvas')].map(e => e.height)")
        whole, head = page.evaluate("[document.getElementById('gantt').chart.whole, HEAD]")
        assert len(shown) > 3
        assert max(shown) < 500
        assert sum(drawn) == pytest.approx(whole + head * (len(drawn) - 1), abs=len(drawn))
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.querySelector('.paper')") is None

    def test_neighbours_differ_in_grey(self, page: Chromium, tmp_path: Path) -> None:
        """Neighbouring roles and neighbouring parts of a bar have different shades of grey."""
        show(page, tmp_path, make_report(4), 1280)
        self.paper(page)
        grey = """names => names.map(name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()).map(hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16))).map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b)"""
        for names in (
            ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"],
            ["--compute", "--overlap", "--exposed"],
            ["--busy", "--flush", "--collective", "--unmatched", "--host", "--wait"],
        ):
            shades = page.evaluate(f"({grey})({names})")
            assert min(abs(a - b) for a, b in pairwise(shades)) > 60, names

    def test_printing_does_not_change_the_screen(self, page: Chromium, tmp_path: Path) -> None:
        """After printing a PDF of several pages, the theme, the folded sections and the charts are the same
        as before on the screen.
        """
        show(page, tmp_path, make_report(40, 1), 1280)
        state = "[document.documentElement.dataset.theme, document.querySelector('details').open, document.querySelector('.gantt canvas').style.width, document.querySelector('svg.chart').getAttribute('viewBox')].join()"
        before = page.evaluate(state)
        pdf = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 4
        page.evaluate(SETTLED)
        assert page.evaluate(state) == before
