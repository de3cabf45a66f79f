"""The judge itself: it detects a false finding, and one that is missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepprof.analysis.report.schema import Finding, Report
from truth.judged_worlds import Made, make
from truth.judging import judged, name_of
from truth.judging_neighbours import false_neighbourhood
from truth.judging_path import false_path, false_slack
from truth.world_of_ranks import ranks_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a world with one slow rank, and its report, in which nothing is false."""
    worlds = map(ranks_world, range(100))
    world = next(world for world in worlds if [each.name for each in world.causes] == ["slower"])
    found = make(world, tmp_path_factory.mktemp("world"))
    assert judged(world, found.ran, found.report) == []
    return found


def changed(made: Made, **fields: object) -> Report:
    """Return the report with its first finding that has a place changed."""
    findings = list(made.report.findings)
    at = next(at for at, each in enumerate(findings) if each.start is not None)
    findings[at] = replace(findings[at], **fields)
    return replace(made.report, findings=findings)


class TestJudged:
    @pytest.mark.parametrize(
        "false",
        [
            {"process": "rank 7"},
            {"region": "load_batch"},
            {"region": None},
            {"topic": "tail"},
            {"seconds": 0.01},
            {"seconds": 100.0},
            {"saves": 0.0},
            {"saves": None},
            {"saves": 100.0},
        ],
    )
    def test_a_false_finding_is_detected(self, made: Made, false: dict[str, object]) -> None:
        """A finding with another process, region, kind, length or gain than the planted cause is false."""
        assert judged(made.world, made.ran, changed(made, **false)) != []

    def test_a_missing_finding_is_detected(self, made: Made) -> None:
        """A planted cause that no finding names is missing."""
        findings = [each for each in made.report.findings if each.start is None]
        assert judged(made.world, made.ran, replace(made.report, findings=findings)) != []

    def test_an_invented_finding_is_detected(self, made: Made) -> None:
        """A finding about no planted cause is false."""
        invented = Finding("", "data", 1.0, process="rank 0", region="load_batch", start=0.0, end=1.0)
        findings = [*made.report.findings, invented]
        assert judged(made.world, made.ran, replace(made.report, findings=findings)) != []


class TestPath:
    def test_another_process_on_the_path_is_detected(self, made: Made) -> None:
        """A path through a process that did not hold the step up is false."""
        ran = made.ran[made.world.recorded]
        assert false_path(ran, made.report) == []
        longest = max(made.report.path, key=lambda each: each.seconds)
        other = next(label for label in ("rank 0", "rank 1") if name_of(label) != name_of(longest.process))
        path = [replace(each, process=other) if each is longest else each for each in made.report.path]
        assert false_path(ran, replace(made.report, path=path)) != []

    def test_a_gap_is_detected(self, made: Made) -> None:
        """A path that lacks a part of the step is false."""
        longest = max(made.report.path, key=lambda each: each.seconds)
        path = [each for each in made.report.path if each is not longest]
        assert false_path(made.ran[made.world.recorded], replace(made.report, path=path)) != []


class TestSlack:
    @pytest.mark.parametrize("more", [-0.1, 0.1])
    def test_a_false_slack_is_detected(self, made: Made, more: float) -> None:
        """A process that could have worked for longer, or not as long, is false."""
        ran = made.ran[made.world.recorded]
        assert false_slack(made.world, ran, made.report) == []
        first = max(made.report.slack, key=lambda each: each.seconds)
        report = replace(made.report, slack=[replace(first, seconds=first.seconds + more)])
        assert false_slack(made.world, ran, report) != []


class TestNeighbourhood:
    def test_a_false_time_of_a_step_is_detected(self, made: Made) -> None:
        """A step that took longer than in the world is false."""
        around = made.report.neighbourhood
        assert around is not None
        assert false_neighbourhood(made.world, made.ran, made.report) == []
        steps = [replace(around.steps[0], seconds=around.steps[0].seconds + 0.01), *around.steps[1:]]
        report = replace(made.report, neighbourhood=replace(around, steps=steps))
        assert false_neighbourhood(made.world, made.ran, report) != []

    def test_a_false_verdict_is_detected(self, made: Made) -> None:
        """A step is typical, or it is not."""
        around = made.report.neighbourhood
        assert around is not None
        whole = replace(around.parts[0], typical=not around.parts[0].typical)
        report = replace(made.report, neighbourhood=replace(around, parts=[whole, *around.parts[1:]]))
        assert false_neighbourhood(made.world, made.ran, report) != []
