"""The facts that findings are made from: the critical path of the step, and the data about its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepprof.analysis.findings.neighbours import Neighbours
from stepprof.analysis.findings.signs import Signs
from stepprof.analysis.findings.step_times import kinds_of
from stepprof.analysis.report.coroutines import Concurrent
from stepprof.analysis.report.critical_path import Segment
from stepprof.analysis.report.generations import Generation
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.nesting import Place
from stepprof.analysis.report.schema import Rollout
from stepprof.analysis.report.step_graph import StepGraph
from stepprof.analysis.report.timelines import Timeline


class Recomputing(NamedTuple):
    """The time in which an engine's worker computed preempted sequences again."""

    preemptions: int
    """What the engine counted."""
    when: Intervals
    retracts: bool = False
    """SGLang: it computes a sequence again as a prompt."""


class Unfinished(NamedTuple):
    """An engine that may have generated for longer than its capture shows."""

    role: str | None
    generated: Intervals
    """What its capture shows; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One step on one clock."""

    start: int
    """Second 0 of the report [ns]."""
    end: int
    path: Sequence[Segment]
    timelines: Mapping[str, Timeline]
    """The timeline of each process, by its label."""
    rollouts: Sequence[Rollout]
    generations: Sequence[Generation]
    """What each role generated."""
    graph: StepGraph
    """Replays the step without a cause."""
    signs: Mapping[str, Signs]
    """The signs of each process, by its label."""
    engine_roles: frozenset[str | None] = frozenset()
    recomputing: Mapping[str, Recomputing] = field(default_factory=dict)
    """The recomputation of each process, by its label."""
    neighbours: Neighbours | None = None
    """The steps around this one, in the spans; None: there are none."""
    unfinished: Sequence[Unfinished] = ()

    @property
    def seconds(self) -> float:
        """The length of the step."""
        return (self.end - self.start) / 1e9

    def at(self, time: int) -> float:
        """Return a time as seconds of the report."""
        return (time - self.start) / 1e9

    def inside(self, process: str, part: Part, *, numbered: bool = False) -> Part:
        """Return what a process did in the region of a part and below.

        Args:
            process: its label.
            part: whose region it is.
            numbered: in regions whose names differ from it in their numbers only.
        """
        depth, timeline = len(part.region), self.timelines[process]
        own = kinds_of(part.region) if numbered else part.region
        when = Intervals.of(
            (start, end)
            for start, end, role, region in timeline.stretches
            if role == part.role and (kinds_of(region[:depth]) if numbered else region[:depth]) == own
        )
        if not part.region and timeline.process.origin.role == part.role:
            when |= timeline.generating  # an engine has neither windows nor regions
        if not len(when):
            calls = self.coroutines(process, part)
            opened = Intervals.all_of(Intervals.unpack(each.when) for each in calls)
            when = opened & Intervals.of(
                (start, end) for start, end, role, _ in timeline.stretches if role == part.role
            )
        return Part(process, part.role, part.region, when)

    def coroutines(self, process: str, part: Part) -> list[Concurrent]:
        """Return the calls that coroutines of a process made in the region of a part."""
        nests = self.timelines[process].nests
        calls = [each for nest in nests for each in nest.coroutines]
        return [each for each in calls if ((each.name,), each.role) == (part.region, part.role)]

    def device_works(self, process: str) -> Intervals:
        """Return when the device of a process computed or communicated: what its host did meanwhile kept nothing waiting."""
        of = self.timelines[process].process
        if not of.has_device:
            return EMPTY
        computing, communicating, _ = of.working()
        return computing | communicating

    def alike(self, part: Part) -> list[Part]:
        """Return what each process did in the region of a part and below. Others may have their own numbers in its name."""
        found = [self.inside(label, part) for label in self.timelines]
        if part.region != kinds_of(part.region):
            found = [
                self.inside(each.process, part, numbered=True) if not len(each.when) else each
                for each in found
            ]
        return [each for each in found if len(each.when)]

    def lacks_regions(self, part: Part) -> bool:
        """Return whether the regions of some ranks in the role of a part are not known: they may have done the same there."""
        ranks = [each for each in self.timelines.values() if each.is_rank and part.role in each.process.roles]
        return bool(part.region) and len({each.shows_regions for each in ranks}) > 1


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one process in one region, as far as it is on the path."""

    process: str
    role: str | None
    region: tuple[str, ...]
    when: Intervals
    claimed: Intervals = EMPTY
    """The rest of its time: other findings have it."""
    of_others: bool = False
    """Whether stepprof did not record the process: what divides its time are annotations."""
    of_engine: bool = False
    """Whether it is the forward steps of an engine."""

    @property
    def whole(self) -> Intervals:
        """Its time, with that of other findings. Its stacks are looked up by it: a claim is no border of the region."""
        return self.when | self.claimed

    @property
    def name(self) -> str | None:
        """The innermost region."""
        return self.region[-1] if self.region else None


def place_of(facts: Facts, process: str, role: str | None, region: tuple[str, ...]) -> Place | None:
    """Return a region of a process by its path; None: it has none there."""
    for nest in facts.timelines[process].nests:
        for at, place in enumerate(nest.places):
            if not place.window and place.role == role and nest.path(at) == region:
                return place
    return None
