"""Play a plan with the real stepprof: a job with windows over simulated engines, and the facts that
were observed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

import stepprof
from faults.engines import SimEngine
from faults.plan import FIRST, LAST, Act, Block, Fork, Plan
from stepprof.remote.loop import remote_loop

__all__ = ["Facts", "WindowFact", "play"]

PAUSE_SECONDS = 0.003
SAVED_SECONDS = 0.05
"""An answer that arrives this shortly before the end of the session may be too late for the manifest."""
SETTLE_SECONDS = 10.0


_cancellable: contextvars.ContextVar[bool] = contextvars.ContextVar("cancellable", default=False)
"""Whether the task in which a window runs is cancelled at some time."""


class Boom(Exception):
    """The exception that a body raises."""


@dataclass(eq=False)
class WindowFact:
    """One window as the job saw it. Times are from ``perf_counter_ns``."""

    number: int
    block: Block
    session: int
    cancellable: bool
    bodies: int = 0
    entered: int = 0
    began: int = 0
    ended: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    """Exceptions that reached the job and are not its own."""

    @property
    def enter_seconds(self) -> float:
        return (self.began - self.entered) / 1e9 if self.began else 0.0

    @property
    def exit_seconds(self) -> float:
        return (self.left - self.ended) / 1e9 if self.ended and self.left else 0.0


@dataclass
class Facts:
    """The facts that were observed in a run."""

    plan: Plan
    engines: list[SimEngine]
    windows: list[WindowFact] = field(default_factory=list)
    seconds: list[tuple[str, float, float]] = field(default_factory=list)
    """For each detach and shutdown: its name, how long it took, and its bound."""
    fragments: list[dict[str, Any]] = field(default_factory=list)
    """The manifests at the end of their session."""
    files: list[tuple[str, int]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    settled_fragments: list[dict[str, Any]] = field(default_factory=list)
    """The manifests after every call was answered."""
    settled_files: list[tuple[str, int]] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    """Engines with an unanswered call when their session ended."""
    machines: dict[str, str] = field(default_factory=dict)
    """The state of each target after every call was answered."""
    shown: list[str] = field(default_factory=list)
    """Where `stepprof.state` did not agree with the targets."""
    not_in_manifest: set[str] = field(default_factory=set)
    """Files that an engine wrote before its call failed, so that no answer reported them."""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        """Return all facts as lines, with times since the first window."""
        zero = min((window.entered for window in self.windows), default=0)

        def ms(*times: int | None) -> str:
            return ", ".join("-" if not each else f"{(each - zero) / 1e6:.1f}" for each in times)

        lines = [repr(self.plan)]
        for w in self.windows:
            lines.append(
                f"window {w.number} {w.block} entered, began, ended, left: {ms(w.entered, w.began, w.ended, w.left)}"
            )
        for engine in self.engines:
            for call in engine.calls:
                lines.append(
                    f"{engine.name} {call.verb} of {call.window}: {ms(call.sent, call.answered)} {call.failed or ''}"
                )
            for capture in engine.captures:
                lines.append(f"{engine.name} recorded {ms(capture.began, capture.ended)} {capture.cause}")
        for fragment in self.fragments:
            lines += [f"{fragment['folder']} {fragment['version']} {entry}" for entry in fragment["engines"]]
        return "\n".join([*lines, *map(str, self.files), *map(str, self.lines)])


class Job:
    """Plays a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.sessions = 0
        self.attached: dict[int, Any] = {}
        self.ever: list[Any] = []
        home = asyncio.get_running_loop() if plan.coroutine else None
        self.facts = Facts(plan, [SimEngine(each, f"e{n}", home) for n, each in enumerate(plan.engines)])
        self._left_open: list[Any] = []
        self._hurried: list[Path] = []
        """The runs whose end reached a bound. Their folders may still be in creation."""
        self._lock = threading.Lock()
        self._attaching = threading.Lock()

    # -- sessions

    def begin(self) -> None:
        roles = {role: {"ranks": "all"} for role in ("rollout", "reward")}
        self.sessions += 1
        self.session = stepprof.init(
            {
                "steps": f"{FIRST}-{LAST}",
                "ranks": "all",
                "backend": "null",
                "output_dir": str(self.folder),
                "min_free_memory": "none",
                "engine_start_timeout_seconds": self.plan.start_seconds,
                "engine_stop_timeout_seconds": self.plan.stop_seconds,
                "max_seconds": self.plan.max_seconds or "none",
                "roles": roles,
            },
            run_id=f"run{self.sessions}",
        )
        for index in range(len(self.facts.engines)):
            self.attach(index)

    def end(self) -> None:
        """End the session, and note at once the files that it left."""
        began = time.perf_counter()
        stepprof.shutdown(self.plan.shutdown_timeout)
        seconds = time.perf_counter() - began
        self.facts.seconds.append(("shutdown", seconds, self.plan.end_seconds))
        if seconds >= min(self.plan.stop_seconds, self.plan.end_seconds):
            self._note_pending(time.perf_counter_ns() - round(1e9 * SAVED_SECONDS))
            self._hurried.append(self.session.path)
        if stepprof.state().status != "idle":
            self.facts.shown.append(f"state() is {stepprof.state()} after the end")
        self.attached.clear()
        self._look_at_disk()

    def _note_pending(self, since: int) -> None:
        """Note the engines with a call that was unanswered at this time. The manifest does not wait
        for the answer to a close.
        """
        for engine in self.facts.engines:
            calls = [call for call in list(engine.calls) if call.verb != "close"]
            if any(call.answered is None or call.answered > since for call in calls):
                self.facts.pending.add(engine.name)

    def _look_at_disk(self) -> None:
        facts, run = self.facts, self.session.path
        self._note_pending(time.perf_counter_ns())
        paths = sorted(run.rglob("*"))
        facts.files += self._files(paths)
        facts.folders += [str(path.relative_to(self.folder)) for path in paths if path.is_dir()]
        self._note_pending(time.perf_counter_ns())
        facts.fragments += self._fragments(run)

    def _files(self, paths: Iterable[Path]) -> list[tuple[str, int]]:
        return [(str(path.relative_to(self.folder)), path.stat().st_size) for path in paths if path.is_file()]

    def _fragments(self, run: Path) -> list[dict[str, Any]]:
        return [
            {"folder": str(path.parent.parent.relative_to(self.folder)), **json.loads(path.read_text())}
            for path in sorted(run.glob("step-*/manifest/*.json"))
        ]

    def attach(self, index: int) -> None:
        engine = self.facts.engines[index]
        target = (lambda: [engine] if engine.alive else []) if engine.plan.how == "callable" else engine
        with self._attaching:
            if index not in self.attached:
                self.attached[index] = stepprof.attach(target, role=engine.plan.role)
                self.ever.append(self.attached[index])

    def detach(self, index: int) -> None:
        with self._attaching:
            attached = self.attached.pop(index, None)
        if attached is not None:
            began = time.perf_counter()
            stepprof.detach(attached)
            self.facts.seconds.append(("detach", time.perf_counter() - began, 0.0))

    # -- operations of the job

    def act(self, act: Act) -> None:
        index = act.engine % len(self.facts.engines)
        engine = self.facts.engines[index]
        {
            "die": engine.die,
            "restart": engine.restart,
            "steal": engine.steal,
            "give back": engine.give_back,
            "release": engine.released.set,
            "detach": lambda: self.detach(index),
            "attach": lambda: self.attach(index),
            "pause": lambda: None,
            "answered": lambda: self._wait(lambda: all(call.answered for call in list(engine.calls))),
            "armed": lambda: self._wait(lambda: engine.is_armed),
        }[act.what]()

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(PAUSE_SECONDS)

    def window(self, block: Block) -> tuple[WindowFact, Any]:
        with self._lock:
            fact = WindowFact(len(self.facts.windows) + 1, block, self.sessions, _cancellable.get())
            self.facts.windows.append(fact)
        return fact, stepprof.profile_step(block.step, role=block.role, version=fact.number)

    @contextlib.contextmanager
    def body(self, fact: WindowFact) -> Iterator[None]:
        fact.bodies += 1
        fact.began = time.perf_counter_ns()
        try:
            yield
            if fact.block.raises:
                raise Boom(fact.number)
        finally:
            fact.ended = time.perf_counter_ns()

    @contextlib.contextmanager
    def outside(self, fact: WindowFact) -> Iterator[None]:
        """Check that only the exception of its own body leaves a window."""
        fact.entered = time.perf_counter_ns()
        try:
            yield
        except Boom as error:
            if error.args != (fact.number,):
                fact.wrong.append(f"another body's {error!r}")
        except asyncio.CancelledError:
            if not fact.cancellable:
                fact.wrong.append("CancelledError")
        except BaseException as error:  # noqa: BLE001 - any exception here is a bug
            fact.wrong.append(repr(error))
        else:
            if fact.block.raises and fact.ended:
                fact.wrong.append("the body's exception was lost")
        finally:
            fact.left = time.perf_counter_ns()

    # synchronous code

    def run(self, ops) -> None:
        for op in ops:
            if isinstance(op, Block):
                self._block(op)
            elif isinstance(op, Fork):
                threads = [threading.Thread(target=self.run, args=(part,)) for part in (op.left, op.right)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            else:
                self.act(op)
                time.sleep(PAUSE_SECONDS)

    def _block(self, block: Block) -> None:
        if block.form == "thread":
            thread = threading.Thread(target=self._plain, args=(block,))
            thread.start()
            thread.join()
        elif block.form in ("start", "left open"):
            self._started(block)
        else:
            self._plain(block)

    def _plain(self, block: Block) -> None:
        fact, window = self.window(block)

        def body() -> None:
            with self.body(fact):
                self.run(block.ops)

        with self.outside(fact):
            if block.form == "decorated":
                window(body)()
            else:
                with window:
                    body()

    def _started(self, block: Block) -> None:
        fact, window = self.window(block)
        with self.outside(fact):
            window.start()
            error: Boom | None = None
            try:
                with self.body(fact):
                    self.run(block.ops)
            except Boom as raised:
                error = raised
            if block.form == "start":
                window.stop(error)
            else:
                fact.ended = 0  # the window stays open
            if error is not None:
                raise error

    # coroutines

    async def arun(self, ops) -> None:
        for op in ops:
            if isinstance(op, Block):
                await self._ablock(op)
            elif isinstance(op, Fork):
                await asyncio.gather(self.arun(op.left), self.arun(op.right))
            else:
                self.act(op)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _ablock(self, block: Block) -> None:
        if block.form == "thread":
            await asyncio.to_thread(self._plain, block)
        elif block.form == "sync":
            fact, window = self.window(block)
            with self.outside(fact), window, self.body(fact):
                await self.arun(block.ops)
        elif block.form in ("start", "left open"):
            await self._astarted(block)
        elif block.form == "cancelled":
            await self._cancelled(block)
        else:
            await self._aplain(block)

    async def _cancelled(self, block: Block) -> None:
        around = _cancellable.set(True)
        task = asyncio.ensure_future(self._aplain(block))
        _cancellable.reset(around)
        await asyncio.sleep(PAUSE_SECONDS)
        task.cancel()
        await asyncio.wait([task])

    async def _aplain(self, block: Block) -> None:
        fact, window = self.window(block)

        async def body() -> None:
            with self.body(fact):
                await self.arun(block.ops)

        with self.outside(fact):
            if block.form == "decorated":
                await window(body)()
            else:
                async with window:
                    await body()

    async def _astarted(self, block: Block) -> None:
        fact, window = self.window(block)
        with self.outside(fact):
            await window.astart()
            error: Boom | None = None
            try:
                with self.body(fact):
                    await self.arun(block.ops)
            except Boom as raised:
                error = raised
            if block.form == "start":
                await window.astop(error)
            else:
                fact.ended = 0
            if error is not None:
                raise error

    # -- the end

    def settle(self) -> None:
        """Release every engine, wait until no call is pending, and note the states."""
        for engine in self.facts.engines:
            engine.released.set()
        targets = [target for attached in self.ever for target in attached.targets]
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            answered = all(c.answered for e in self.facts.engines for c in list(e.calls))
            if answered and all(t.machine.state == "idle" and t.recording is None for t in targets):
                break
            time.sleep(0.002)
        remote_loop().submit(_nothing()).result(5)
        for found in list(self.facts.folders):
            folder = self.folder / found
            if folder.parent in self._hurried and folder.name.startswith("step-"):
                self._settle_folder(found, deadline)
        self._look_at_settled_disk(deadline)
        for target in targets:
            self.facts.machines[f"{target.driver.name} {id(target)}"] = target.machine.state

    def _settle_folder(self, found: str, deadline: float) -> None:
        """Wait until a step's folder has a manifest or is removed. Forget a folder that had no
        manifest at the end of its run.
        """
        manifest = f"{found}/manifest"
        while (self.folder / found).is_dir() and not (self.folder / manifest).is_dir():
            if time.monotonic() > deadline:
                return
            time.sleep(0.002)
        if not any(path.startswith(f"{manifest}/") for path, _ in self.facts.files):
            self.facts.folders.remove(found)

    def _look_at_settled_disk(self, deadline: float) -> None:
        """Note the manifests after they contain all answers, which are written shortly after the calls."""
        runs = [self.folder / f"run{number + 1}" for number in range(self.sessions)]
        written = {path for engine in self.facts.engines for path, call in engine.written if not call.failed}
        while True:
            found = [fragment for run in runs for fragment in self._fragments(run)]
            entries = [(each["folder"], entry) for each in found for entry in each["engines"]]
            named = {
                self.folder / folder / artifact["path"]
                for folder, entry in entries
                for artifact in entry["artifacts"]
            }
            is_written = named >= written and not any(entry["pending"] for _, entry in entries)
            if is_written or time.monotonic() > deadline:
                break
            time.sleep(0.003)
        self.facts.settled_fragments = found
        self.facts.settled_files = self._files(sorted(self.folder.rglob("*")))

    def look_at_state(self) -> None:
        """Compare `stepprof.state` with the targets in a live session, once it no longer changes."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            targets = [t for attached in self.attached.values() for t in attached.targets]
            there = {t.label: t.machine.state if t.health == "ok" else t.health for t in targets}
            shown = dict(stepprof.state().engines)
            if shown == there:
                return
            if time.monotonic() > deadline:
                self.facts.shown.append(f"state() shows {shown}, the engines are {there}")
                return
            time.sleep(0.003)


async def _nothing() -> None:
    return None


class Noted(logging.Handler):
    """A handler that collects the warnings of asyncio, such as an unretrieved exception of a task."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append({"event": "asyncio", "reason": record.getMessage(), "exc": record.exc_info})


def play(plan: Plan, folder: Path) -> Facts:
    """Run the plan in this process, with its runs in the folder, and return the facts."""
    handler = Noted([])
    log = logging.getLogger("asyncio")
    log.addHandler(handler)
    try:
        with structlog.testing.capture_logs() as lines:
            handler._lines = lines
            facts = asyncio.run(_aplay(plan, folder)) if plan.coroutine else _play(plan, folder)
            facts.lines = list(lines)
    finally:
        log.removeHandler(handler)
        structlog.reset_defaults()
        stepprof.shutdown(0.1)
    facts.not_in_manifest = {
        str(path.relative_to(folder))
        for engine in facts.engines
        for path, call in engine.written
        if call.failed
    }
    return facts


def _play(plan: Plan, folder: Path) -> Facts:
    job = Job(plan, folder)
    for ops in filter(None, (plan.ops, plan.again)):
        job.begin()
        job.run(ops)
        job.look_at_state()
        job.end()
    job.settle()
    return job.facts


async def _aplay(plan: Plan, folder: Path) -> Facts:
    job = Job(plan, folder)
    for ops in filter(None, (plan.ops, plan.again)):
        job.begin()
        await job.arun(ops)
        await asyncio.to_thread(job.look_at_state)
        await asyncio.to_thread(job.end)
    await asyncio.to_thread(job.settle)
    return job.facts
