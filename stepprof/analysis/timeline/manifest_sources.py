"""List the sources in the manifest of a step, and its span files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepprof.analysis.post_step_notes import pruned_paths
from stepprof.analysis.timeline.capture_window import CaptureWindow
from stepprof.analysis.timeline.file_names import worker_of
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.span_sources import span_files
from stepprof.formats import npu_folder
from stepprof.host.plain_files import readable
from stepprof.run.layout import SPANS, step_folder
from stepprof.run.manifest import read_step
from stepprof.run.occurrence_spans import Portion
from stepprof.run.occurrences import split
from stepprof.run.runs import steps
from stepprof.run.summary import SESSIONS, engine_label, without_references

TRACES = (".json", ".json.gz")
_OTHERS = {
    ".nsys-rep": "an Nsight Systems report, for its own viewer (nsys-ui); it is not part of the timeline",
    ".pickle": "a memory snapshot, which has no timeline; view it at https://pytorch.org/memory_viz",
}
NOT_IN_TIME = ("memory-snapshot", "memory-summary")
"""Artifacts without traces; no timeline contains them. `stepprof show` reads them."""
UNMEASURED = Alignment("unmeasured", 0, None)


Process = tuple[object, ...]
"""As `Origin.process`."""


@dataclass(frozen=True, slots=True)
class Input:
    """One source that can be loaded; small, so that it can be sent to a worker."""

    origin: Origin
    paths: tuple[str, ...]
    """The file; for spans, the rolling files of one process, in order."""
    bytes: int
    status: str | None = None
    """The outcome in the manifest; None without a manifest."""
    alignment: Alignment = UNMEASURED
    """The alignment of its host's clock with the common one."""
    step: int | None = None
    """For spans: only those of this step."""
    roles: tuple[str, ...] | None = None
    """For spans: those of these roles, and those without a role; None: all."""
    portion: Portion | None = None
    """For spans: the selected occurrence of the step; None: all of them."""
    within: tuple[int, int] | None = None
    """For a capture that covers more than the selection (several steps, other roles): when its
    process was in selected windows, by its own clock.

    None: all of it is selected.
    """
    window: CaptureWindow | None = None
    """For an engine's capture: its window; None: not known, or all of the capture is selected."""
    driver: str | None = None
    """For an engine's capture: the machine of its driver. `window` is by that clock until it is
    placed.
    """
    wall_ahead_ns: int = 0
    """For a trace: how far its times, which are by the wall clock, are ahead of its process's clock."""
    held: tuple[tuple[str, int, int], ...] = ()
    """When the profiler held its process up, by `stepprof.analysis.timeline.profiler_stalls`."""
    marked_step: int | None = None
    """For a trace without a manifest: the selected one of the steps that torch's profiler marked; None: not selected."""
    alone: bool = False
    """For a trace without a manifest: no other source is read, so its times may be relative to an unknown one."""


@dataclass(slots=True)
class Recorded:
    """The inputs of a step in one run directory."""

    run: Path
    step: int
    traces: list[tuple[Input, str]] = field(default_factory=list)
    """Each with the fragment that lists it."""
    findings: list[tuple[str | None, str | None, str]] = field(default_factory=list)
    """Entries without a usable file: (the fragment that lists it, its label, the reason)."""
    _pruned: Mapping[str, str] = field(default_factory=dict)
    _within: dict[tuple[str, Process], tuple[int, int]] = field(default_factory=dict)
    """By fragment and process of a window."""

    def take(self, manifest: Mapping[str, Any]) -> None:
        """Add the step's manifest."""
        self._pruned = {
            f"{step_folder(self.step)}/{path}": why for path, why in pruned_paths(manifest).items()
        }
        occurrences = split(manifest)
        for part in occurrences:
            edges = windows_within(self.run, self.step, part)
            self._within |= {
                (window["fragment"], process): edge
                for window in part["windows"]
                if (edge := edges.get(process := process_of(window)))
            }
        for window in manifest["windows"]:
            pid = window["pid"] if isinstance(window["pid"], int) else None
            occurrence = int(window["occurrence"] or 1)
            machine, namespace = window["boot_id"], window["pid_namespace"]
            origin = Origin(
                "rank", "", window["role"], window["rank"], None, window["host"], pid, occurrence, machine, namespace
            )  # fmt: skip
            self._entry(window, origin, origin.label)
        for engine in without_references(manifest["engines"]):
            if engine["kind"] in SESSIONS and not engine["artifacts"]:
                continue
            replica = None if engine["replica"] is None else int(engine["replica"])
            occurrence = int(engine["occurrence"] or 1)
            origin = Origin(
                "engine", "", engine["role"], None, replica, engine["host"], None, occurrence, engine["boot_id"]
            )  # fmt: skip
            self._entry(engine, origin, engine_label(engine))

    def _entry(self, entry: Mapping[str, Any], origin: Origin, label: str) -> None:
        for named in self._named(entry):
            name, file = named, self.run / named
            if file.name.endswith(npu_folder.FOLDER):
                trace = npu_folder.trace_of(file)
                if trace is None:
                    self.findings.append((entry["fragment"], label, f"{name} {self._unreadable(file)}"))
                    continue
                file, name = trace, trace.relative_to(self.run).as_posix()
            if not name.endswith(TRACES) and not npu_folder.is_database(file.name):
                self.findings.append((entry["fragment"], label, f"{name} is {_no_trace(name)}"))
                continue
            try:
                size = file.stat().st_size
            except OSError as error:
                problem = f"is listed in the manifest but cannot be read: {error.strerror}"
                self.findings.append((entry["fragment"], label, f"{name} {self._pruned.get(name, problem)}"))
                continue
            rank = worker_of(file.name) if origin.kind == "engine" else origin.rank
            within = (
                self._within.get((entry["fragment"], process_of(entry))) if origin.kind == "rank" else None
            )
            of_engine = origin.kind == "engine"
            found = Input(
                replace(origin, path=readable(name), rank=rank),
                (str(file),),
                size,
                entry["status"],
                within=within,
                window=CaptureWindow.of(entry) if of_engine else None,
                driver=machine_of(entry) if of_engine else None,
            )
            self.traces.append((found, entry["fragment"]))
        if entry["status"] not in ("complete", "joined"):
            reason = f": {entry['error']}" if entry["error"] else ""
            self.findings.append((entry["fragment"], label, f"{entry['status']}{reason}"))

    def _unreadable(self, folder: Path) -> str:
        """Return why a folder of torch_npu is not in the timeline."""
        again = f"stepprof analyse {self.run.name} --step {self.step}"
        if npu_folder.is_analysed(folder):
            return f'was analysed, but the analysis wrote no trace and no database: run "{again} --again" to see why'
        return f'is not analysed yet: run "{again}" to create its trace'

    def _named(self, entry: Mapping[str, Any]) -> list[str]:
        """Return the files of an entry, as paths in the run."""
        folder = step_folder(self.step)
        if entry["artifacts"]:
            return [
                f"{folder}/{artifact['path']}"
                for artifact in entry["artifacts"]
                if artifact["kind"] not in NOT_IN_TIME
            ]
        capture = entry["capture"]
        first = capture.get("step") if isinstance(capture, dict) else None
        if not isinstance(first, int) or isinstance(first, bool) or first == self.step:
            return []
        # several steps in one capture: its trace is in the folder of the first step
        stem = f"{step_folder(first)}/{capture.get('stem')}"
        if ".." in stem:
            return []
        if (self.run / f"{stem}.trace.json.gz").is_file():
            return [f"{stem}.trace.json.gz"]
        folders = npu_folder.profile_folders(self.run / f"{stem}{npu_folder.SUFFIX}")
        return [folder.relative_to(self.run).as_posix() for folder in folders]


def span_inputs(run: Path, step: int) -> Iterator[Input]:
    """Yield the span files of a run, those of one process together."""
    for group in span_files(run / SPANS):
        name = f"{SPANS}/{readable(group.files[0].name)}"
        origin = Origin(
            "spans", name, None, group.rank, None, group.host, group.pid,
            machine=group.boot_id, pid_namespace=group.pid_namespace, anchor=group.anchor,
        )  # fmt: skip
        paths = tuple(str(file) for file in group.files)
        yield Input(origin, paths, sum(file.stat().st_size for file in group.files), step=step)


def windows_within(run: Path, step: int, manifest: Mapping[str, Any]) -> dict[Process, tuple[int, int]]:
    """Return, for each process with a capture of several steps, the time from the start of its
    first window to the end of its last one.
    """
    later = min((number for number in steps(run) if number > step), default=None)
    follows = [] if later is None else read_step(run, later)["windows"]
    several = {process_of(window) for window in manifest["windows"] if _began_in(window, step) != step}
    several |= {process_of(window) for window in follows if _began_in(window, step + 1) <= step}
    return windows_edges(window for window in manifest["windows"] if process_of(window) in several)


def windows_edges(windows: Iterable[Mapping[str, Any]]) -> dict[Process, tuple[int, int]]:
    """Return the time from the start of each process's first window to the end of its last one, by
    its own clock.

    A process is left out if one of its windows lacks either time.
    """
    edges: dict[Process, tuple[int, int]] = {}
    unknown = set()
    for window in windows:
        process, start, end = process_of(window), window["start_unix_ns"], window["end_unix_ns"]
        if type(start) is not int or type(end) is not int:
            unknown.add(process)
            continue
        first, last = edges.get(process, (start, end))
        edges[process] = (min(first, start), max(last, end))
    return {process: edge for process, edge in edges.items() if process not in unknown}


def machine_of(entry: Mapping[str, Any]) -> str:
    """Return the machine of the process that wrote an entry, or its host's name."""
    return str(entry["process"]).partition(" ")[0]


def process_of(window: Mapping[str, Any]) -> Process:
    """Return the process of a window, as `Origin.process` does for a source."""
    machine = window.get("boot_id") or window.get("host")
    return machine, window.get("pid_namespace"), window.get("pid"), window.get("rank")


def with_machines(inputs: Iterable[Input], windows: Iterable[Mapping[str, Any]]) -> list[Input]:
    """Return the inputs. Span files without a machine get that of their process's windows, if only
    one process fits.
    """
    reported: dict[Process, set[tuple[str | None, str | None]]] = defaultdict(set)
    for window in windows:
        writer = (window["boot_id"], window["pid_namespace"])
        reported[window["host"], window["pid"], window["rank"]].add(writer)
    named = []
    for each in inputs:
        origin = each.origin
        machines = reported.get((origin.host, origin.pid, origin.rank), set())
        if origin.kind == "spans" and origin.machine is None and len(machines) == 1:
            machine, namespace = next(iter(machines))
            each = replace(each, origin=replace(origin, machine=machine, pid_namespace=namespace))  # noqa: PLW2901
        named.append(each)
    return named


def _began_in(window: Mapping[str, Any], step: int) -> int:
    """Return the step in which the capture of a window of `step` started."""
    capture = window.get("capture")
    first = capture.get("step") if isinstance(capture, dict) else None
    return first if type(first) is int else step


def _no_trace(name: str) -> str:
    return next(
        (what for ending, what in _OTHERS.items() if name.endswith(ending)),
        "not a supported kind of trace: omitted",
    )
