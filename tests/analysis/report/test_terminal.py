"""The report as text in a terminal, and as JSON in a file."""

from __future__ import annotations

import io
import json
import re
from collections import Counter

import msgspec
import pytest
from reports import make_comparison, make_report
from rich.console import Console

from stepprof.analysis.report.schema import (
    CauseTimes,
    Change,
    Comparison,
    Finding,
    Neighbourhood,
    Overhead,
    Overlap,
    Part,
    PhaseSkew,
    Problem,
    ProcessTime,
    Report,
    Rollout,
    StepTime,
    StopCost,
    TimeOf,
    Usual,
)
from stepprof.analysis.report.store import dump, read, write
from stepprof.analysis.report.terminal import print_comparison, print_report
from stepprof.analysis.report.wording import seconds
from stepprof.errors import ConfigError

PARTS = "where the time went: in any process, which can overlap, and on the critical path"


def text_of(content, *, encoding="utf-8", width=120, **options):
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=buffer, width=width, highlight=False, markup=False, emoji=False)
    (print_report if isinstance(content, Report) else print_comparison)(content, console, **options)
    buffer.seek(0)
    return buffer.read()


def section(text, title):
    """Return the lines under a title, up to the next empty line."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return lines[start:end]


def rows(text, title):
    """Return the rows of a table, without its headings, which may take several lines."""
    lines = section(text, title)
    return lines[next(i for i, line in enumerate(lines) if "───" in line) + 1 :]


class TestReport:
    def test_headlines_come_first_with_what_they_cost(self):
        report = make_report(4, 1, straggler=2)
        lines = text_of(report).splitlines()
        assert lines[0].startswith("run grpo-7b-math  step 12  version 11  56.9 s")
        reported = report.findings[2].text
        assert next(line for line in lines if reported in line).split() == [
            f"{report.findings[2].seconds:.2f}",
            "s",
            *reported.split(),
        ]
        order = [
            next(i for i, line in enumerate(lines) if each.text[:40] in line) for each in report.findings
        ]
        assert order == sorted(order)

    def test_the_first_screen_has_the_first_causes(self):
        """The length of the step and what is missing come with three causes; the others follow under a heading, whatever their size."""
        causes = [Finding(f"cause {number}", "straggler", 1.0 / number) for number in range(1, 6)]
        first = [Finding("the step took 4 s", "step", 4.0), Finding("a capture was lost", "coverage")]
        report = Report("r", 1, 0, 4.0, "", None, findings=[*first, *causes])
        lines = [line.split("  ")[-1] for line in text_of(report).splitlines() if line.strip()]
        assert lines[1:9] == [
            *("the step took 4 s", "a capture was lost", "cause 1", "cause 2", "cause 3"),
            *("and 2 more", "cause 4", "cause 5"),
        ]
        assert " more" not in text_of(msgspec.structs.replace(report, findings=[*first, *causes[:3]]))

    def test_the_ribbon_shows_when_a_role_was_at_work(self):
        """A role that works in the second quarter of the step fills the second quarter of its line. Its time in any process stands before that on the path."""
        parts = [Part("actor", "actor", None, 0.5, 0.125, 1.0, 0.25, [(1.0, 1.0)]), Part("no role", None, None, 3.5, 0.875, None, None)]  # fmt: skip
        line, rest = rows(text_of(Report("r", 1, 0, 4.0, "", None, parts=parts)), PARTS)
        assert line.split() == [
            "actor",
            "·" * 11 + "█" * 11 + "·" * 22,
            "1.00",
            "s",
            "25%",
            "500",
            "ms",
            "12%",
        ]
        assert rest.split() == ["no", "role", "·" * 44, "-", "-", "3.50", "s", "88%"]

    @pytest.mark.parametrize("clocks", [3, 64])
    def test_the_parts_on_many_clocks(self, clocks):
        """Each clock has parts of its own: those of the first ones are shown, and the number of the other clocks."""
        parts = [
            Part(name, None, name, None, None, 1.0, 0.25, [(at, 1.0)], clock=f"rank {clock}")
            for clock in range(clocks)
            for at, name in enumerate(("forward", "backward"))
        ]
        shown = rows(text_of(Report("r", 1, 0, 4.0, "", None, parts=parts)), PARTS)
        assert len(shown) == (2 * clocks if clocks == 3 else 2 * 4 + 1)
        assert shown[-1].startswith(
            "  backward on rank 2" if clocks == 3 else "  and those on 60 more clocks, in the JSON"
        )

    def test_a_terminal_without_unicode_gets_ascii(self):
        text = text_of(make_report(3, 1), encoding="ascii")
        assert "#" * 10 in text
        assert "??" not in text

    def test_many_processes_are_a_mean_and_the_extremes(self):
        few = rows(text_of(make_report(3, 1)), "work and waiting")
        many = rows(text_of(make_report(64, 1)), "work and waiting")
        assert [line.split("  ")[1] for line in few] == ["actor rank 0", "actor rank 1", "actor rank 2"]
        assert [line.strip().split(" ")[0] for line in many] == ["mean", "least:", "most:"]

    def test_a_skew_within_the_clock_error_is_marked(self):
        lines = section(text_of(make_report(8, 1, straggler=1)), "stragglers")
        assert ["within the clocks' error" in line for line in lines[2:]] == [False, False, False, True]
        waits = msgspec.structs.replace(
            make_report(1), skew=[PhaseSkew("actor", None, "rank 1", 1.0, 1.0, [], True, "collectives")]
        )
        assert section(text_of(waits), "stragglers")[-1].rstrip().endswith("in collectives")

    def test_collectives_that_were_not_recorded_on_all_ranks(self):
        """The table gives the time of each process in them and the number of members. The awaited
        rank is unknown.
        """
        heading = "collectives that were not recorded on all ranks, or could not be matched"
        (some, other) = rows(text_of(make_report(3, 1)), heading)
        assert some.split() == [
            "ref",
            "sync",
            "3",
            "300",
            "ms",
            "300",
            "ms",
            "actor",
            "rank",
            "0",
            "8",
            "of",
            "64",
        ]
        assert other.split() == ["actor", "-", "2", "100", "ms", "100", "ms", "actor", "rank", "0", "-"]

    def test_the_cost_of_recording_excludes_the_export(self):
        """Recording delayed rank 0 by 200 ms: 100 ms arm, 20 ms start, 30 ms wait, 50 ms stall. The
        export runs next to training and does not count.
        """
        costly = Overhead("rank 0", arm=0.1, start=0.02, wait=0.03, stall=0.05, export=9.0)
        report = Report("r", 1, 0, 4.0, "", None, overhead=[costly, Overhead("rank 1", stall=0.1), Overhead("rollout/0", start=0.1, stop=3.0)])  # fmt: skip
        assert section(text_of(report), "memory and recording overhead") == [
            "  recording delayed the processes by 150 ms on average, 200 ms at most (rank 0)",
            "  the slowest engine took 3.00 s to stop recording (rollout/0)",
        ]

    def test_estimates_for_other_limits_are_marked(self):
        """Each estimate of the cost for another limit is marked with a tilde."""
        costs = [StopCost("rollout/0", 32, 1.5, "write", [(128, 6.0)]), StopCost("rollout/1", 8, 1.0, "stop", [(32, 4.0), (128, 16.0)])]  # fmt: skip
        lines = section(
            text_of(Report("r", 1, 0, 4.0, "", None, stops=costs)),
            "time that engines took to write their traces, with estimates for other limits",
        )
        rows = [line.split() for line in lines]
        assert "estimate for 32" in lines[0]
        assert ["rollout/1", "8", "1.00", "s", "~", "4.00", "s", "~", "16.0", "s"] in rows
        assert ["rollout/0", "32", "1.50", "s", "-", "~", "6.00", "s"] in rows

    def test_times_of_several_clocks_name_their_hosts(self):
        parts = [Part("actor", "actor", None, None, None, took, took / 4, clock=clock) for took, clock in ((1.0, "a, b"), (2.0, "c"))]  # fmt: skip
        regions = [TimeOf("actor", "update", 1.0, 0.25, [ProcessTime("rank 0", 1.0)], "c")]
        text = text_of(Report("r", 1, 0, 4.0, "", None, parts=parts, regions=regions))
        assert [line.split("  ")[1] for line in rows(text, PARTS)] == [
            "actor on a, b",
            "actor on c",
        ]
        assert "update on c" in section(text, "regions")[-1]

    @pytest.mark.parametrize("width", [20, 50, 80])
    def test_a_narrow_terminal_shows_every_figure_whole(self, width):
        """Names and headings are wrapped. On an even narrower terminal, only the spread in the
        region tree is omitted.
        """
        report = make_report(3, 1, straggler=1)
        alike = [msgspec.structs.replace(row, processes=1) for row in report.tree]
        report = msgspec.structs.replace(report, tree=alike)
        figure = re.compile(r"[\d.,]+ (?:s|ms|µs|ns)\b|[\d.]+%")
        wide, narrow = text_of(report, width=300), text_of(report, width=width)
        tables = [text[text.index("rollout/0") :] for text in (wide, narrow)]
        assert Counter(figure.findall(tables[1])) == Counter(figure.findall(tables[0]))
        assert sum("█" in line for line in section(narrow, PARTS)) == len(report.roles)

    def test_eighty_columns_hold_the_usual_tables(self):
        report = make_report(3, 1, straggler=1)
        assert max(map(len, text_of(report, width=80).splitlines())) <= 80
        assert max(map(len, text_of(make_comparison(), width=80).splitlines())) <= 80

    @pytest.mark.parametrize("width", [80, 100, 120])
    def test_the_region_tree_has_a_line_for_each_row(self, width):
        """The headings take one line, and the rule is as long as the table. A shortened name keeps
        its begin and its end.
        """
        long = "aten::_scaled_dot_product_flash_attention_for_cpu"
        report = make_report(3, 1, straggler=1)
        called = next(at for at, row in enumerate(report.tree) if row.kind == "op" and row.name != "others")
        tree = [*report.tree]
        tree[called] = msgspec.structs.replace(tree[called], name=f"{long}_backward", share=0.5)
        shown = section(text_of(msgspec.structs.replace(report, tree=tree), width=width), "regions and what")
        heads, rule, *lines = shown
        assert heads.split("  ")[1] == "region"
        assert "of the step" in heads
        assert ("least to most" in heads) == (width == 120)
        assert len(rule) <= width
        assert max(map(len, lines)) <= len(rule)
        assert all("%" in line for line in lines)
        (cut,) = [line for line in lines if "aten::_scaled" in line]
        assert "backward " in cut
        assert any("other operators" in line for line in lines)

    def test_regions_too_short_for_the_tree_are_in_the_list(self):
        """Traces recorded at different times make a step of which every region is a tiny share."""
        report = make_report(3, 1)
        tree = [msgspec.structs.replace(row, share=0.0) for row in report.tree]
        text = text_of(msgspec.structs.replace(report, tree=tree))
        assert "regions and what" not in text
        assert rows(text, "regions")

    def test_no_line_ends_in_blanks(self):
        text = text_of(make_report(3, 1)) + text_of(make_comparison())
        assert [line for line in text.splitlines() if line != line.rstrip()] == []

    def test_names_cannot_inject_terminal_sequences(self):
        """Names are printed without their escape sequences and without rich's markup."""
        hostile = "[red]x[/red]\x1b[2J\r\n"
        report = msgspec.structs.replace(
            make_report(1),
            run_id=hostile,
            findings=[Finding(hostile, "tail")],
            problems=[Problem(hostile, hostile)],
        )
        text = text_of(report)
        assert "\x1b" not in text
        assert text.count("[red]x[/red]?[2J??") == 4

    def test_unknown_values_are_left_out(self):
        assert [line for line in text_of(Report("r", 1, 0, 2.5, "by one clock.", None)).splitlines() if line.strip()] == [
            "run r  step 1  2.50 s", "clock: by one clock"
        ]  # fmt: skip

    def test_an_engine_that_never_worked_has_no_curve(self):
        engine = Rollout("rollout/0", 0, 0.0, 0.0, 0.0, 0.0, 0.0, [])
        assert section(text_of(Report("r", 1, 0, 1.0, "", None, rollout=[engine])), "rollout")[-1].split() == ["rollout/0", "0", "s", "0", "0", "0%", "0", "s"]  # fmt: skip

    def test_long_lists_are_cut_and_say_so(self):
        report = msgspec.structs.replace(
            make_report(2), problems=[Problem(None, f"problem {i}") for i in range(14)]
        )
        notes = section(text_of(report), "notes")
        assert len(notes) == 11
        assert notes[-1].strip() == "and 4 more, in the JSON"
        assert len(section(text_of(report, top=3), "operators")) == 5


class TestComparison:
    def test_changes_are_grouped_and_signed(self):
        text = text_of(make_comparison())
        rollout = section(text, "rollout")[-1].split()
        assert rollout == [
            "rollout/0",
            "tail",
            "11.2",
            "s",
            "18.9",
            "s",
            "+7.70",
            "s",
            "+69%",
            "900",
            "ms",
            "processes",
        ]
        titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
        assert titles == ["A  grpo-7b-math step 12", "B  grpo-7b-math step 40", "step", "roles", "rollout", "regions", "operators, self time per process", "notes"]  # fmt: skip

    def test_only_a_known_noise_can_hide_a_change(self):
        regions = section(text_of(make_comparison()), "regions")
        assert [line.split("  ")[-1] for line in regions[2:]] == [
            "within noise",
            "processes",
            "unknown",
        ]

    def test_the_origin_of_the_noise_is_named(self):
        """An operator that exceeds the noise between processes is compared with that of whole steps too."""
        noises = ((0.1, 0.1, None, 0), (0.5, 0.1, None, 0), (0.5, None, 0.5, 8))
        changes = [
            Change(f"op {at}", "op", 1.0, 2.0, noise, True, processes, steps, count)
            for at, (noise, processes, steps, count) in enumerate(noises)
        ]
        rows = section(text_of(Comparison("a", "b", changes=changes)), "operators, self time per process")
        assert [row.split("ms  ")[-1] for row in rows[2:]] == ["processes", "whole steps", "8 steps"]


class TestWords:
    def test_lengths_of_time_keep_three_digits_across_units(self):
        values = [1e-10, 4e-9, 9.996e-7, 0.0009996, 0.09996, 0.9996, 9.996, 99.96, 12345.6]
        assert [seconds(value) for value in values] == [
            "0 s",
            "4 ns",
            "1.00 µs",
            "1.00 ms",
            "100 ms",
            "1.00 s",
            "10.0 s",
            "100 s",
            "12,346 s",
        ]
        assert seconds(-0.0123) == "-12.3 ms"


class TestStore:
    def test_a_report_round_trips(self, tmp_path):
        report = make_report(3, 1)
        write(tmp_path / "step-000012" / "report.json", dump(report))
        assert read(tmp_path / "step-000012" / "report.json", Report) == report
        write(tmp_path / "c.json", dump(make_comparison()))
        assert read(tmp_path / "c.json", Comparison) == make_comparison()

    def test_the_json_is_for_any_program(self, tmp_path):
        content = json.loads(dump(make_report(1, 1)))
        assert (content["schema_version"], content["step"]) == (4, 12)
        assert content["skew"][0]["straggler"] == "actor rank 0"

    @pytest.mark.parametrize(
        ("data", "said"),
        [(b'{"schema_version": 1}', "schema_version 1"), (b'{"schema_version": 4}', "missing required field"), (b"[]", "not a report"), (b"\xff", "not a report"), (b"", "not a report")],
    )  # fmt: skip
    def test_anything_else_is_refused_by_name(self, tmp_path, data, said):
        (tmp_path / "x.json").write_bytes(data)
        with pytest.raises(ConfigError, match=said) as raised:
            read(tmp_path / "x.json", Report)
        assert "x.json" in str(raised.value)

    def test_no_file_at_all(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(tmp_path / "x.json", Report)

    def test_a_file_that_cannot_be_written_leaves_the_old_one(self, tmp_path):
        """A file exists where the folder would be."""
        (tmp_path / "taken").write_text("old")
        with pytest.raises(ConfigError, match="--html or --json"):
            write(tmp_path / "taken" / "report.json", b"{}")
        assert (tmp_path / "taken").read_text() == "old"
        assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


@pytest.mark.parametrize(("device", "busy", "shown"), [("cpu", None, False), ("gpu", 0.5, True)])
def test_the_column_of_a_busy_device_needs_a_device(device, busy, shown):
    text = text_of(Report("r", 1, 0, 4.0, "", None, overlap=[Overlap("rank 0", device, 0.5, 0.2, 0.1, 0.1, busy)]))  # fmt: skip
    assert ("device busy" in text) == shown


def test_regions_of_one_name_in_several_roles() -> None:
    """A region of a rank has its role in the table of steps; a label that has it already is not lengthened."""
    usual = Usual(None, 1.0, 1.0, 1.0, 1.0, 1, typical=True)
    places = [
        CauseTimes(process, role, "log_probs", {2: 1.0}, usual)
        for process, role in (("rank 0", "ref"), ("rank 0", "actor"), ("actor rank 1", "actor"))
    ]
    around = Neighbourhood("rank 0", [StepTime(2, 1.0, recorded=True)], [], [usual], "typical", places)
    text = text_of(Report("r", 2, 0, 1.0, "", None, neighbourhood=around))
    names = ["log_probs (ref) of rank 0", "log_probs (actor) of rank 0", "log_probs of actor rank 1"]
    assert [name in text for name in names] == [True] * 3
