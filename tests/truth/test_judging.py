"""The judge itself: it detects a false finding, and one that is missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepprof.analysis.report.schema import Finding, Report
from truth.judged_worlds import Made, make
from truth.judging import judged
from truth.world_of_ranks import ranks_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the first world with a cause, and its report, in which nothing is false."""
    world = next(world for seed in range(100) if (world := ranks_world(seed)).causes)
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
