"""What the reading commands cost per rank does not depend on how many ranks there are. Instructions are counted, not seconds: a machine that is busy counts the same."""

from __future__ import annotations

import contextlib
import io

import pytest
from counting import instructions_of

from benchmarks.make_ranks import make_ranks
from stepprof.cli.main import main

RANKS = (24, 40, 56)
"""More than a table shows one by one."""


@pytest.fixture(scope="module")
def fabricated(tmp_path_factory):
    """Runs of more and more ranks, eight to a host, with an engine for each host."""
    folder = tmp_path_factory.mktemp("ranks")
    return [make_ranks(folder, ranks) for ranks in RANKS]


def quiet(*arguments):
    """Run a command that ends well, without what it prints."""
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
        ["merge", "--workers", "1", "--output", "timeline.json.gz", "--format", "json"],
        ["report", "--workers", "1", "--html", "report.html", "--json", "report.json"],
    ],
    ids=" ".join,
)
def test_each_further_rank_costs_the_same(fabricated, command, tmp_path, monkeypatch):
    """Sixteen further ranks take as many instructions as the sixteen before them, within a tenth, because the recordings differ; in a report
    within a quarter, because they have different numbers of findings. If the cost grew with the square of the ranks, it would be 1.5 times as many."""
    monkeypatch.chdir(tmp_path)
    name, *options = command
    quiet(name, fabricated[0], *options)  # what is made or loaded once
    few, more, many = (instructions_of(quiet, name, run, *options) for run in fabricated)
    assert (many - more) / (more - few) < (1.25 if name == "report" else 1.1)
