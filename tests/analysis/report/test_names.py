"""Names of regions: one with a slash differs from two that are nested, in every table, in text and in a comparison."""

from __future__ import annotations

from digested import spans

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.compare import compare
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.markdown import render
from stepprof.analysis.report.region_rows import row_text
from stepprof.analysis.report.schema import Report
from stepprof.analysis.report.step_tracks import step_tracks


def report(nested: float, named: float) -> Report:
    """Return the report of a step with `kl` inside `loss`, and with `loss/kl`, for some milliseconds each."""
    slices = [
        ("window", "step", 0, 200, None),
        ("region", "loss", 0, nested + 10, None),
        ("region", "kl", 5, nested, None),
        ("region", "loss/kl", 100, named, None),
    ]
    return combine([digest(spans(0, *slices))], step=2, run_id="r")


def test_the_tables() -> None:
    """Path, parts, regions and tree have `loss`, `kl` inside it, and `loss/kl` apart from both."""
    made = report(20, 60)
    assert [each.region for each in made.path] == [["loss"], ["loss", "kl"], ["loss"], [], ["loss/kl"], []]
    assert {part.name: part.seconds for part in made.parts if part.region} == {"loss": 0.03, "loss/kl": 0.06}
    assert {time.region: time.seconds for time in made.regions} == {"loss": 0.03, "kl": 0.02, "loss/kl": 0.06}
    assert [row_text(made.tree, row) for row in made.tree] == ["step", "loss\\/kl", "loss", "loss/kl"]
    assert [row.seconds for row in made.tree] == [0.2, 0.06, 0.03, 0.02]
    assert made.findings[0].text == "the step took 200 ms: no region 55%, `loss/kl` 30%, `loss` 15%"


def test_text() -> None:
    """Markdown and the track of the path in the timeline have a line for each."""
    made = report(20, 60)
    shown = render(made).splitlines()
    assert [line.split(" | ")[0].lstrip("| ") for line in shown if line.startswith("| loss")] == ["loss", "loss/kl", "loss\\\\/kl", "loss", "loss/kl"]  # fmt: skip
    names = [name for name in step_tracks(made).names if "kl" in name]
    assert names == ["rank 0: kl", "rank 0: loss/kl"]


def test_a_comparison() -> None:
    """Each has a row of its own in a comparison: what one loses is not added to the other."""
    changes = {
        each.what: (each.a, each.b)
        for each in compare(report(20, 60), report(40, 30)).changes
        if each.topic == "region"
    }
    assert changes == {"loss/kl": (0.06, 0.03), "loss": (0.03, 0.05), "kl": (0.02, 0.04)}
