"""Measure the cost of a call while nothing is recorded: without a session, and in a session whose
step is not selected.

The figures with a limit are those of the promise "off costs nothing". One process runs them all. It
first measures the block before any `init`, when names of the package are still loaded lazily. Then
it measures everything after an `init` that is switched off, and finally sessions with the null
backend.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass, field

import stepprof
from benchmarks.figures import Row
from benchmarks.peers import block_peers, decorated_peers, empty_call
from benchmarks.timing import Effort, Subject, Timed, time_subjects
from stepprof.integrations.patches import Patches
from stepprof.integrations.timer_switch import timers
from stepprof.integrations.training_loop import open_timer

__all__ = ["measure_calls"]

SETTLE_SECONDS = 0.05
"""The pause between two timings in a session, in which the background writer writes the spans of
the previous one.
"""


@dataclass(frozen=True)
class Limit:
    """A limit in nanoseconds for one subject: for its value, or for its added cost over the bare call."""

    nanoseconds: float
    on: str


@dataclass(frozen=True)
class Group:
    """Subjects that are compared with each other. The first one of stepprof is the reference."""

    name: str
    subjects: list[Subject]
    limits: dict[str, Limit] = field(default_factory=dict)
    clock: str = "process"


class _Timer:
    """A framework's own timer that does nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _PatchedTimer(_Timer):
    """A timer that does nothing and that an adapter has patched."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _timers() -> list[Subject]:
    """Return a framework's timer, plain and patched, in a step that records nothing of it."""
    patches = Patches("bench")
    target = f"{__name__}:_PatchedTimer"
    patches.around(f"{target}.__enter__", lambda *_: open_timer("bench"), timer=True)
    patches.around(f"{target}.__exit__", lambda *_: None, timer=True)
    return [
        Subject("framework's timer", "with timer:\n    pass", {"timer": _Timer()}),
        Subject(
            "framework's timer, patched",
            "with timer:\n    pass",
            {"timer": _PatchedTimer()},
            base="framework's timer",
            ours=True,
            settle=lambda: timers.turn(False),
        ),
    ]


async def _empty_coroutine() -> None:
    """The bare coroutine, for comparison with a decorated one."""


def _decorated(prefix: str) -> list[Subject]:
    region = stepprof.region
    return [
        Subject("empty call", "call()", {"call": empty_call}),
        Subject(
            f"{prefix}@region", "call()", {"call": region("bench")(empty_call)}, base="empty call", ours=True
        ),
        Subject("empty await", "await call()", {"call": _empty_coroutine}),
        Subject(
            f"{prefix}@region, async def",
            "await call()",
            {"call": region("bench")(_empty_coroutine)},
            base="empty await",
            ours=True,
        ),
    ]


def _blocks() -> list[Subject]:
    names = {"stepprof": stepprof}
    return [
        Subject("with region(name)", 'with stepprof.region("bench"):\n    pass', names, ours=True),
        Subject(
            "with region(name, batch=…)",
            'with stepprof.region("bench", batch=64):\n    pass',
            names,
            ours=True,
        ),
        Subject(
            "async with region(name)", 'async with stepprof.region("bench"):\n    pass', names, ours=True
        ),
    ]


def _windows() -> list[Subject]:
    names = {"stepprof": stepprof}
    return [
        Subject(
            "with profile_step(step, role)",
            'with stepprof.profile_step(7, role="actor"):\n    pass',
            names,
            ours=True,
        ),
        Subject("with profile_step(step)", "with stepprof.profile_step(7):\n    pass", names, ours=True),
        Subject("next step number", "next(steps)", {"steps": itertools.count(10)}),
        Subject(
            "with profile_step(step, role), each step once",
            'with stepprof.profile_step(next(steps), role="actor"):\n    pass',
            {**names, "steps": itertools.count(10)},
            base="next step number",
            ours=True,
        ),
    ]


ANSWER = {"meta_info": {"first_token_latency": 0.1, "e2e_latency": 0.9, "completion_tokens": 9}}
"""An answer of SGLang without the tokens."""


def _points() -> list[Subject]:
    names = {"stepprof": stepprof}
    return [
        Subject("state()", "stepprof.state()", names, ours=True),
        Subject("str(state())", "str(stepprof.state())", names, ours=True),
        Subject("mark(name)", 'stepprof.mark("bench")', names, ours=True),
        Subject(
            "mark_request(answer)", "stepprof.mark_request(answer)", {**names, "answer": ANSWER}, ours=True
        ),
        Subject("counter(name, value)", 'stepprof.counter("bench", 17)', names, ours=True),
        Subject("tick()", "stepprof.tick()", names, ours=True),
    ]


def _groups_without_session() -> tuple[list[Group], dict[str, str]]:
    decorated, absent = decorated_peers()
    blocks, absent_blocks = block_peers()
    groups = [
        Group(
            "decorated, no session",
            [*_decorated(""), *decorated],
            {"@region": Limit(100, "added")},
        ),
        Group("with-block, no session", [*_blocks(), *blocks], {"with region(name)": Limit(250, "value")}),
        Group("window, no session", _windows(), {"with profile_step(step, role)": Limit(300, "value")}),
        Group("points, no session", _points(), {"state()": Limit(100, "value")}),
    ]
    return groups, {**absent, **absent_blocks}


def _groups_with_session() -> list[Group]:
    groups = [
        Group(
            "decorated, session on",
            _decorated(""),
            {"@region": Limit(1000, "added")},
            clock="thread",
        ),
        Group(
            "with-block, session on", _blocks(), {"with region(name)": Limit(1000, "value")}, clock="thread"
        ),
        # the window and its own span, which may cost as much as any span
        Group(
            "window with its span, session on, not selected",
            _windows(),
            {
                "with profile_step(step, role)": Limit(600 + 1000, "value"),
                "with profile_step(step, role), each step once": Limit(600 + 1000, "added"),
            },
            clock="thread",
        ),
        Group("points, session on", _points(), {"state()": Limit(100, "value")}, clock="thread"),
    ]
    return [
        Group(group.name, [_settling(subject) for subject in group.subjects], group.limits, group.clock)
        for group in groups
    ]


def _groups_without_spans() -> list[Group]:
    return [
        Group(
            "window, session on without spans, not selected",
            _windows(),
            {
                "with profile_step(step, role)": Limit(600, "value"),
                "with profile_step(step, role), each step once": Limit(600, "added"),
            },
            clock="thread",
        ),
        Group(
            "framework's timer, session on without spans, not selected",
            _timers(),
            {"framework's timer, patched": Limit(100, "added")},
            clock="thread",
        ),
    ]


def _settling(subject: Subject) -> Subject:
    return Subject(
        subject.name,
        subject.statement,
        subject.names,
        subject.base,
        subject.ours,
        subject.note,
        settle=lambda: time.sleep(SETTLE_SECONDS),
    )


def measure_calls(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of every group, and the peers that are not installed."""
    effort = Effort.quick() if quick else Effort.usual()
    before = Group("before init", [*_blocks()[:1], *_windows()[:1]])
    rows = _rows(before, time_subjects(before.subjects, effort))
    stepprof.init({"steps": "none", "spans": False})
    groups, absent = _groups_without_session()
    rows += [row for group in groups for row in _rows(group, time_subjects(group.subjects, effort))]
    rows += _against_verl(rows)
    sessions: list[tuple[dict[str, object], list[Group]]] = [
        ({"spans": False}, _groups_without_spans()),
        ({"spans": True}, _groups_with_session()),
    ]
    for options, under_session in sessions:
        with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
            config = {"output_dir": folder, "steps": "every 1000000000", "backend": "null", **options}
            stepprof.init(config, rank=0, world_size=1)
            try:
                for group in under_session:
                    rows += _rows(group, time_subjects(group.subjects, effort))
            finally:
                stepprof.shutdown()
    return rows + _in_recorded_windows(effort), absent


_WORK = Subject("10,000 turns of a Python loop", "for number in range(10_000): number * number")


def _in_recorded_windows(effort: Effort) -> list[Row]:
    """Measure a region and a decorated call in a recorded window, with and without evidence. The
    null backend adds no range.
    """
    rows: list[Row] = []
    for evidence in (True, False):
        group = Group(
            f"with-block, in a recorded window, {'with' if evidence else 'without'} evidence",
            [_settling(subject) for subject in (*_blocks()[:1], *_decorated("")[:2], _WORK)],
            clock="thread",
        )
        with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
            config = {"output_dir": folder, "steps": "7", "backend": "null", "max_seconds": "none"}
            stepprof.init({**config, "evidence": evidence}, rank=0, world_size=1)
            try:
                with stepprof.profile_step(7):
                    rows += _rows(group, time_subjects(group.subjects, effort))
            finally:
                stepprof.shutdown()
    return rows


def _rows(group: Group, timed: dict[str, Timed]) -> list[Row]:
    figures = {name: getattr(figure, group.clock) for name, figure in timed.items()}
    bases = {subject.base for subject in group.subjects}
    added = {
        subject.name: figures[subject.name].less(figures[subject.base]).minimum if subject.base else None
        for subject in group.subjects
    }

    def cost(name: str) -> float:
        own = added[name]
        return figures[name].minimum if own is None else own

    measure = cost(next(subject.name for subject in group.subjects if subject.ours))
    rows = []
    for subject in group.subjects:
        limit = group.limits.get(subject.name)
        figure = figures[subject.name]
        judged = None
        if limit is not None:
            judged = added[subject.name] if limit.on == "added" else figure.minimum
        rows.append(
            Row(
                group=group.name,
                name=subject.name,
                unit="ns",
                value=figure.minimum,
                median=figure.median,
                spread=figure.spread,
                added=added[subject.name],
                ratio=None if subject.name in bases or measure <= 0 else cost(subject.name) / measure,
                limit=limit.nanoseconds if limit else None,
                limit_on=limit.on if limit else None,
                judged=judged,
                note=subject.note,
            )
        )
    return rows


def _against_verl(rows: list[Row]) -> list[Row]:
    """Return one more row if verl is installed: stepprof's added cost as a share of verl's."""
    added = {row.name: row.added for row in rows if row.group == "decorated, no session"}
    ours, theirs = added["@region"], added.get("verl DistProfiler.annotate, disabled")
    if ours is None or theirs is None:
        return []
    share = ours / theirs
    return [
        Row(
            group="decorated, no session",
            name="@region as a share of verl's annotate",
            unit="x",
            value=share,
            limit=0.1,
            limit_on="value",
            judged=share,
        )
    ]
