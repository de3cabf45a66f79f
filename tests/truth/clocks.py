"""Check how the report placed each source: each offset is right within its stated error, and so is
each comparison within an island.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from stepprof.analysis.report.schema import SourceInfo
from truth.known import Place
from truth.model import Engine, Machine
from truth.noting import Notes

__all__ = ["places"]

LOCAL = 200
"""Error with which a process reads its own clock, on either side [ns]."""


def places(notes: Notes) -> dict[int | str, Place]:
    """Check each stated offset, and return how each process was placed."""
    found: dict[int | str, Place] = {}
    placed: list[tuple[SourceInfo, Machine, object]] = []
    for source in notes.report.sources:
        if not source.alignment:
            continue
        engine = _engine(notes, source) if source.kind == "engine" else None
        machine = notes.truth.process(source.rank or 0).machine if engine is None else engine.machine
        island = _island(notes, source, machine)
        place = Place(machine.offset - source.offset_ns, source.error_ns or 0, island)
        placed.append((source, machine, island))
        if engine is not None:
            notes.place_of_engine(engine, place)
        elif found.setdefault(source.rank or 0, place) != place:
            notes.say(f"places of {source.label}", place, found[source.rank or 0])
    _errors(notes, placed)
    by_machine = {
        machine.boot: Place(machine.offset - source.offset_ns, source.error_ns or 0, island)
        for source, machine, island in placed
    }
    for process in notes.truth.processes:
        if process.rank not in found and process.windows_in_manifest(notes.truth):
            # a process that only the manifest has is on the clock of its machine
            found[process.rank] = by_machine.get(process.machine.boot) or _compared(
                notes, process.machine, placed
            )
    return found


def _compared(notes: Notes, machine: Machine, placed: Sequence[tuple[SourceInfo, Machine, object]]) -> Place:
    """Return the place of a machine without a source: by its comparison with a machine that has
    one, if there is one.
    """
    truth = notes.truth
    measured = {truth.machines[0].boot: (0, 0)}
    measured |= {truth.machines[other].boot: (offset, error) for _, other, offset, error in truth.comparisons}
    for source, other, island in placed:
        if source.error_ns is not None and {machine.boot, other.boot} <= measured.keys():
            (here, wrong), (there, wrong_too) = measured[machine.boot], measured[other.boot]
            return Place(machine.offset - (source.offset_ns + here - there), wrong + wrong_too, island)
    if machine.boot in measured:  # only the manifest has information about these
        return Place(machine.offset - measured[machine.boot][0], measured[machine.boot][1], "one")
    return Place(machine.offset, 0, machine.boot)


def _engine(notes: Notes, source: SourceInfo) -> Engine:
    return next(each for each in notes.truth.engines if each.replica == source.replica)


def _island(notes: Notes, source: SourceInfo, machine: Machine) -> object:
    """Return the report's island of a source; if the report has no islands, all sources are on one."""
    islands = notes.report.islands
    if not islands:
        return "one"
    mine = [number for number, island in enumerate(islands) if source.host in island.hosts]
    notes.unclear |= len(mine) > 1
    return mine[0] if len(mine) == 1 else machine.boot


def _errors(notes: Notes, placed: Sequence[tuple[SourceInfo, Machine, object]]) -> None:
    """Check pairs of sources on one island: the difference of their offsets is right within the sum
    of their errors.
    """
    by_machine = {(machine.boot, island): (source, machine) for source, machine, island in placed}
    for ((_, island), (one, here)), ((_, other_island), (other, there)) in combinations(
        by_machine.items(), 2
    ):
        if island != other_island:
            continue
        wrong = abs((one.offset_ns - other.offset_ns) - (here.offset - there.offset))
        if one.error_ns is None and other.error_ns is None:
            notes.say(f"clocks of {one.label} and {other.label}", "on one island", "never compared")
        # a source whose clock was compared with no other has the clock of its island
        elif wrong > (one.error_ns or 0) + (other.error_ns or 0) + LOCAL:
            notes.say(
                f"clocks of {one.label} ({one.alignment}) and {other.label} ({other.alignment})",
                f"{one.offset_ns - other.offset_ns} ± {one.error_ns} ± {other.error_ns}",
                here.offset - there.offset,
            )
