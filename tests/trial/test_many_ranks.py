"""Test that the cost of the reading commands per rank does not depend on the number of ranks. The
tests count instructions instead of seconds, because the count is the same on a busy machine.
"""

from __future__ import annotations

import contextlib
import io

import pytest
from counting import instructions_of

from benchmarks.make_ranks import make_ranks
from stepprof.cli.main import main

RANKS = (24, 40, 56)
"""More ranks than a table shows one by one."""


@pytest.fixture(scope="module")
def fabricated(tmp_path_factory):
    """Return runs of increasing numbers of ranks, eight per host, with an engine for each host."""
    folder = tmp_path_factory.mktemp("ranks")
    return [make_ranks(folder, ranks) for ranks in RANKS]


def quiet(*arguments):
    """Run a command, check that it succeeds, and discard its output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(list(map(str, arguments))) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["show"],
        ["spans"],
        ["status"],
        ["check"],
        ["merge", "--workers", "1", "--output", "timeline.pftrace"],
        ["report", "--workers", "1", "--html", "report.html", "--json", "report.json"],
    ],
    ids=" ".join,
)
def test_each_further_rank_costs_the_same(fabricated, command, tmp_path, monkeypatch):
    """Sixteen further ranks take as many instructions as the sixteen before them, within a tenth,
    because the recordings differ. In a report it is within a quarter, because the numbers of
    findings differ. A cost that grew with the square of the ranks would be 1.5 times as many.
    """
    monkeypatch.chdir(tmp_path)
    name, *options = command
    quiet(name, fabricated[0], *options)  # create or load what is needed only once
    few, more, many = (instructions_of(quiet, name, run, *options) for run in fabricated)
    assert (many - more) / (more - few) < (1.25 if name == "report" else 1.1)
