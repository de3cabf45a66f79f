"""Judge a comparison of two runs, and its gate, by the worlds that these are about."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from stepprof.cli.main import main
from truth.filing import file_run
from truth.model import SECOND, T0
from truth.scheduling import Ran, run_all
from truth.worlds import Name, World

__all__ = ["Compared", "compared", "false_comparison", "false_status"]

LIMIT = 0.05
"""The largest tolerated increase of the step."""
UNSURE = 0.02
"""How far the true increase may be from the limit so that any verdict is right, as a share."""
SAME = 0.012
"""The largest difference of equal work, as a share of it."""
WORTH_SAYING = 0.01
"""The share of the step below which a change is no finding."""
DAY = 86_400 * SECOND
PASSED, REGRESSION, UNKNOWN = 0, 3, 4


class Compared(NamedTuple):
    """Two worlds that have run, and what the command said about them."""

    worlds: tuple[World, World]
    ran: tuple[list[Ran], list[Ran]]
    status: int
    content: Mapping[str, Any]
    """The comparison in JSON."""


def compared(a: World, b: World, folder: Path, lost: Sequence[Name] = ()) -> Compared:
    """Run two worlds and compare their runs. `lost`: the processes of B without spans."""
    ran = run_all(a, T0), run_all(b, T0 + DAY)
    runs = file_run(a, ran[0], folder / "a"), file_run(b, ran[1], folder / "b")
    for name in lost:
        (runs[1] / "spans" / f"rank-{name}.000001.jsonl").unlink()
    sides = (f"{run}:{world.recorded}" for run, world in zip(runs, (a, b), strict=True))
    options = ("--json", "--workers", "1", "--fail-on-regression", f"{LIMIT:.0%}")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = main(["report", *sides, *options])
    return Compared((a, b), ran, status, json.loads(said.getvalue()))


def false_status(made: Compared, *, complete: bool) -> list[str]:
    """Return what is false in the exit status. `complete`: the spans of all processes are there."""
    before, after = (
        median(following.start - each.start for each, following in pairwise(ran[1:])) for ran in made.ran
    )
    longer = after / before - 1
    true = {
        PASSED: complete and longer < LIMIT + UNSURE,
        REGRESSION: complete and longer > LIMIT - UNSURE,
        UNKNOWN: not complete or abs(longer - LIMIT) < UNSURE,
    }
    if true.get(made.status, False):
        return []
    said = (made.content.get("gate") or {}).get("text")
    return [f"status {made.status}, B is {longer:.1%} longer, complete: {complete}: {said}"]


def false_comparison(made: Compared) -> list[str]:
    """Return the changes that are false, or missing."""
    wrong = []
    regions = dict(_regions(made))
    least = WORTH_SAYING * made.ran[0][made.worlds[0].recorded].ns / 1e9
    for each in made.content["changes"]:
        if each["topic"] != "region":
            continue
        shares = regions.get(each["what"].rpartition(": ")[2])
        if shares is None or not each["significant"] or abs(each["b"] - each["a"]) < least:
            continue
        longer = each["b"] > each["a"]
        if all(abs(share) < SAME for share in shares):
            wrong.append(f"nothing changed: {each}")
        elif max(shares) < SAME if longer else min(shares) > -SAME:
            wrong.append(f"the other way round: {each}")
    shown = {each["what"].rpartition(": ")[2]: each for each in made.content["changes"]}
    for region, shares in regions.items():
        if min(shares) > LIMIT + UNSURE and not (shown.get(region) or {}).get("significant", False):
            wrong.append(f"{region} took {min(shares):.0%} longer in every process: {shown.get(region)}")
    return wrong


def _regions(made: Compared) -> Iterator[tuple[str, list[float]]]:
    """Yield each region of both worlds, with the change of its time in each process as a share."""
    before, after = (_times(ran[world.recorded]) for world, ran in zip(made.worlds, made.ran, strict=True))
    for region in before:
        if region in after and before[region].keys() == after[region].keys():
            yield region, [after[region][name] / time - 1 for name, time in before[region].items()]


def _times(ran: Ran) -> dict[str, dict[Name, int]]:
    found: dict[str, dict[Name, int]] = {}
    for name, line in ran.lines.items():
        for each in line.regions:
            of = found.setdefault(str(each.name), {})
            of[name] = of.get(name, 0) + each.end - each.start
    return found
