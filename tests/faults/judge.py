"""The invariants of every run, whatever its engines did: what stepprof reported and did is compared
with what really happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faults.engines import Call, SimEngine
from faults.play import Facts, WindowFact

__all__ = ["MARGIN_SECONDS", "broken", "slow"]

MARGIN_SECONDS = 0.6
"""Time that the machine may need beyond a bound. It is less than the 1 s that stepprof allows if it
does not keep the bound.
"""

ANNOUNCE_SECONDS = 0.2
STATUSES = {"complete", "joined", "partial", "skipped", "failed", "lost"}
BOOKKEEPING = ("run.json", "spans/", "status/", "requests/", "after/")
NEVER = (
    "internal.error",
    "background.failed",
    "engine.not_recorded",
    "manifest.not_written",
    "remote.interrupted",
)


def slow(facts: Facts) -> list[str]:
    """Return what took longer than its bound. The machine may be the cause, so a single occurrence
    is not a problem.
    """
    found = []
    for window in facts.windows:
        for what, seconds, bound in (
            ("enter", window.enter_seconds, facts.plan.start_seconds + ANNOUNCE_SECONDS),
            ("exit", window.exit_seconds, facts.plan.stop_seconds),
        ):
            if seconds > bound + MARGIN_SECONDS:
                found.append(
                    f"the {what} of window {window.number} took {seconds:.3f} s, its bound is {bound} s"
                )
    for what, seconds, bound in facts.seconds:
        if seconds > bound + MARGIN_SECONDS:
            found.append(f"{what} took {seconds:.3f} s, its bound is {bound} s")
    return found


def broken(facts: Facts) -> list[str]:
    """Return the violated invariants, each as a sentence."""
    checks = (_bodies, _entries, _settled, _missing, _on_disk, _left_recording, _states, _contract, _log)
    return [problem for check in checks for problem in check(facts)]


def _bodies(facts: Facts) -> Iterator[str]:
    for window in facts.windows:
        allowed = (0, 1) if window.cancellable else (1,)
        if window.bodies not in allowed:
            yield f"the body of window {window.number} ran {window.bodies} times"
        for wrong in window.wrong:
            yield f"window {window.number}: {wrong} reached the job"


def _entries(facts: Facts) -> Iterator[str]:
    windows = {window.number: window for window in facts.windows}
    engines = {engine.name: engine for engine in facts.engines}
    for fragment in facts.fragments:
        window = windows[fragment["version"]]
        for entry in fragment["engines"]:
            name = f"window {window.number}, {entry['name']} ({entry['status']}, {entry['error']})"
            if entry["status"] not in STATUSES:
                yield f"{name}: no such outcome"
            engine = engines.get(entry["name"])
            if engine is None or engine.plan.inside:
                continue
            if entry["status"] == "complete":
                yield from (f"{name}: {why}" for why in _incomplete(engine, window, entry))
            if entry["status"] == "joined" and entry["error"] is None and engine.name not in facts.pending:
                yield from (f"{name}: {why}" for why in _not_joined(engine, window))
            said = entry["stop_seconds"] is not None or entry["health"] == "dead"
            if entry["status"] == "lost" and engine.name not in facts.pending and not said:
                yield f"{name}: every call was answered, and it does not say what came of it"


def _settled(facts: Facts) -> Iterator[str]:
    """Check the manifests after every call was answered, however long after the end of the session."""
    windows = {window.number: window for window in facts.windows}
    engines = {engine.name: engine for engine in facts.engines}
    for fragment in facts.settled_fragments:
        window = windows[fragment["version"]]
        for entry in fragment["engines"]:
            name = (
                f"window {window.number}, {entry['name']} ({entry['status']}, {entry['error']}), in the end"
            )
            if entry["pending"]:
                yield f"{name}: waits for an answer, and there is none to come"
            engine = engines.get(entry["name"])
            if engine is not None and not engine.plan.inside and entry["status"] == "complete":
                yield from (f"{name}: {why}" for why in _incomplete(engine, window, entry))


def _incomplete(engine: SimEngine, window: WindowFact, entry: dict[str, Any]) -> Iterator[str]:
    """Return why a capture that is reported as complete is not."""
    start, stop = _call(engine, "start", window), _call(engine, "stop", window)
    if start is None or start.answered is None or start.failed:
        yield "its start was not answered"
        return
    if window.began and start.answered > window.began:
        yield f"its start was answered {(start.answered - window.began) / 1e6:.1f} ms after the body began"
    if stop is None or stop.failed:
        yield "its stop was not answered"
        return
    capped = entry["capped_by"] is not None
    if not capped and (not window.ended or stop.sent < window.ended):
        yield "its stop was sent before the body ended"
    capture = start.capture
    if capture is None or capture.cause != "stop":
        yield f"its capture ended otherwise: {capture and capture.cause}"
        return
    if capture.ended is None or capture.ended_unix is None:
        yield "its capture still runs"
        return
    if window.began and capture.began > window.began:
        yield "its capture began within the body"
    if not capped and capture.ended < window.ended:
        yield "its capture ended within the body"
    if entry["start_unix_ns"] is None or entry["start_unix_ns"] < capture.began_unix:
        yield "its start_unix_ns lies before its capture"
    if entry["end_unix_ns"] is None or entry["end_unix_ns"] > capture.ended_unix:
        yield "its end_unix_ns lies after its capture"


def _not_joined(engine: SimEngine, window: WindowFact) -> Iterator[str]:
    """Return why no capture of the engine covers a window that is reported as joined."""
    if not window.began:  # cancelled before its body
        return
    for call in engine.calls:
        capture = call.capture
        if call.verb != "start" or capture is None or call.answered is None:
            continue
        begun = call.answered <= window.began
        over = capture.ended is None or (window.ended and capture.ended >= window.ended)
        if begun and over and capture.cause in (None, "stop"):
            return
    yield "no capture has all of this window"


def _missing(facts: Facts) -> Iterator[str]:
    """Check that an engine that was attached for the whole run has one entry in each selected
    window of its role.
    """
    said = [
        (fragment["version"], entry["name"]) for fragment in facts.fragments for entry in fragment["engines"]
    ]
    changed = {op.engine % len(facts.engines) for op in _acts(facts) if op.what in ("detach", "attach")}
    for number, engine in enumerate(facts.engines):
        plan = engine.plan
        if number in changed or plan.kind == "spans" or plan.how != "object":
            continue
        for window in facts.windows:
            concerned = window.block.role == plan.role or (window.block.role is None and plan.kind == "rank")
            selected = 2 <= window.block.step <= 5
            times = said.count((window.number, engine.name))
            if times != (1 if concerned and selected else 0) and (window.bodies or times > 1):
                yield f"window {window.number} has {times} entries of {engine.name}"


def _acts(facts: Facts) -> Iterator[Any]:
    def within(ops: Any) -> Iterator[Any]:
        for op in ops or ():
            for part in ("ops", "left", "right"):
                yield from within(getattr(op, part, ()))
            if hasattr(op, "what"):
                yield op

    yield from within(facts.plan.ops)
    yield from within(facts.plan.again)


def _on_disk(facts: Facts) -> Iterator[str]:
    """Check that each file is in a manifest or has a known place, at the end of its run and after
    all answers. Each step's folder must have a manifest.
    """
    if not facts.pending:
        yield from _files(facts.files, facts.fragments, facts)
    for problem in _files(facts.settled_files, facts.settled_fragments, facts):
        yield f"{problem}, in the end"
    for folder in facts.folders:
        name = folder.partition("/")[2]
        is_written = any(path.startswith(f"{folder}/manifest/") for path, _ in facts.files)
        if name.startswith("step-") and "/" not in name and not is_written and not facts.pending:
            yield f"{folder} is left without a manifest"


def _files(files: list[tuple[str, int]], fragments: list[dict[str, Any]], facts: Facts) -> Iterator[str]:
    named = {
        f"{fragment['folder']}/{artifact['path']}": artifact["bytes"]
        for fragment in fragments
        for entry in (*fragment["engines"], *fragment["windows"])
        for artifact in entry["artifacts"]
    }
    there = dict(files)
    for path, size in files:
        place = path.partition("/")[2]
        if place.startswith(BOOKKEEPING) or place.split("/")[1:2] == ["manifest"]:
            continue
        if path not in named and not (path in facts.not_in_manifest and _is_in_manifest(path, fragments)):
            yield f"{path} is in no manifest"
        elif path in named and named[path] != size:
            yield f"{path} has {size} bytes, its manifest says {named[path]}"
    for path in named:
        if path not in there:
            yield f"{path} is in a manifest and not on disk"


def _is_in_manifest(path: str, fragments: list[dict[str, Any]]) -> bool:
    """Return whether the error of an entry names the file, as after a failed call."""
    return any(
        path.removeprefix(f"{fragment['folder']}/") in (entry["error"] or "")
        for fragment in fragments
        for entry in fragment["engines"]
        if path.startswith(f"{fragment['folder']}/")
    )


def _left_recording(facts: Facts) -> Iterator[str]:
    """Check that no engine is left recording, unless it refused every call to end the capture,
    including the driver's close.
    """
    for engine in facts.engines:
        ends = [call for call in engine.calls if call.verb in ("stop", "abort", "close")]
        for capture in engine.captures:
            sent = [call for call in ends if call.sent >= capture.began]
            if capture.cause in ("died", "stolen"):
                continue
            if not any(call.verb != "close" for call in sent):
                yield f"{engine.name} was left recording: no stop was sent to the capture of {capture.owner}"
            elif capture.ended is None and not all(call.failed for call in sent):
                yield f"{engine.name} was left recording, though it answered what was sent to end the capture of {capture.owner}"
            elif capture.ended is None and not any(call.verb == "close" for call in sent):
                yield f"{engine.name} was left recording: the stop of {capture.owner} failed, and its driver was not closed"


def _states(facts: Facts) -> Iterator[str]:
    for label, state in facts.machines.items():
        if state != "idle":
            yield f"{label} is {state} at the end"
    yield from facts.shown


def _contract(facts: Facts) -> Iterator[str]:
    for engine in facts.engines:
        for violation in engine.violations:
            yield f"{engine.name}: {violation}"
        for call in engine.calls:
            if call.answered is None:
                yield f"{engine.name}: its {call.verb} was never answered"


def _log(facts: Facts) -> Iterator[str]:
    exits = any(
        fault.error == "exit" for e in facts.engines for _, faults in e.plan.faults for fault in faults
    )
    for line in facts.lines:
        event = line["event"]
        if event == "remote.interrupted" and exits:
            continue
        if event in NEVER or (event == "asyncio" and not exits):
            yield f"logged: {line}"


def _call(engine: SimEngine, verb: str, window: WindowFact) -> Call | None:
    """Return the last call of a verb for a window."""
    found = [call for call in engine.calls if call.verb == verb and call.window == window.number]
    return found[-1] if found else None
