"""Find the inputs: turn runs, steps, folders and files into a list, each item small enough to send
to a worker.

This module knows which files of a run belong to one step, and how other tools name their files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stepprof.analysis.timeline.clocks import Clocks
from stepprof.analysis.timeline.file_names import (
    merged_from,
    origin_of_file,
    shortened,
    stated_step,
    worker_of,
)
from stepprof.analysis.timeline.manifest_sources import (
    TRACES,
    Input,
    Process,
    Recorded,
    process_of,
    span_inputs,
    with_machines,
)
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.named_traces import is_file, left_beside
from stepprof.analysis.timeline.occurrence import Occurrence, without_superseded
from stepprof.analysis.timeline.profiler_stalls import with_held
from stepprof.analysis.timeline.source_selection import of_ranks, of_roles
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError
from stepprof.formats.npu_folder import is_database
from stepprof.formats.recognise import is_packed_name, is_trace_name, may_be_damaged, not_a_trace
from stepprof.host.plain_files import readable, resolved
from stepprof.run.conflicts import sentences
from stepprof.run.layout import step_folder, step_number
from stepprof.run.manifest import find_step, read_clocks, read_step
from stepprof.run.occurrences import occurrence_note, of_fragments
from stepprof.run.runs import find_run, is_folder, is_run, named_run, run_id_of, steps
from stepprof.run.same_run import evidence_of, parts_of_one_run, why_apart
from stepprof.run.summary import absent_ranks

__all__ = ["Elsewhere", "Found", "Gathered", "Input", "find", "gather"]


_MOST_NAMED = 3
_NUMBER = re.compile(r"\d+")
_SUFFIXES = re.compile(r"(?:\.pt)?(?:\.trace)?\.(?:json(?:\.gz)?|db)$")


@dataclass(frozen=True, slots=True)
class Gathered:
    """The parts of a step in one run directory; small, so that it can be sent to another node."""

    run: Path
    manifest: dict[str, Any]
    clocks: list[dict[str, Any]]
    inputs: list[tuple[Input, str | None]]
    """Each with the fragment that names it."""
    findings: list[tuple[str | None, str | None, str]]
    """(the fragment that reports it, its owner, the problem)."""

    @property
    def step(self) -> int:
        """Its number."""
        return int(self.manifest["step"])


Elsewhere = Callable[[Sequence[Path], "int | None"], "list[Gathered]"]
"""Returns what other nodes have of a run and a step, or of the last step that any of them has."""


@dataclass(slots=True)
class Found:
    """The result of `find`."""

    inputs: list[Input] = field(default_factory=list)
    considered: list[Input] = field(default_factory=list)
    """All inputs, before the selection of roles and ranks."""
    manifests: list[dict[str, Any]] = field(default_factory=list)
    """For each run directory, the manifest of the step."""
    findings: list[tuple[str | None, str]] = field(default_factory=list)
    """Sources without events and damaged files: (label, problem)."""
    run_id: str | None = None
    step: int | None = None
    occurrence: int = 1
    """The selected occurrence among the recorded ones of the step."""
    occurrences: int = 1
    """How many occurrences were recorded."""
    runs: list[Path] = field(default_factory=list)
    """The run directories."""
    placed: dict[Process, Alignment] = field(default_factory=dict)
    """How the times of each process in the manifests are placed on the common clock, including
    processes without a source.
    """
    folder: Path | None = None
    """The folder for output: the step's folder (of the first run directory), or the folder of other
    traces.
    """

    stem: str | None = None
    """The name of the only trace, without its suffixes, if stepprof did not record it: other traces may be in its folder."""

    @property
    def unlisted(self) -> set[str | None]:
        """The paths of the traces that no manifest lists. A manifest of the run, or of a timeline of it, states which of its captures are incomplete."""
        traces = [each for each in self.inputs if each.origin.kind != "spans"]
        return {each.origin.path for each in traces if each.origin.kind == "trace" or each.status is None}

    def named(self, name: str) -> str:
        """Return the default name of a file made of the step. An occurrence before the last one has
        its number in the name, a trace its own name.

        >>> Found(occurrence=1, occurrences=2).named("timeline.pftrace"), Found(stem="rank0").named("report")
        ('timeline.1.pftrace', 'rank0.report')
        """
        stem, dot, suffix = name.partition(".")
        if self.stem is not None:
            return f"{self.stem}.{name}"
        return name if self.occurrence == self.occurrences else f"{stem}.{self.occurrence}{dot}{suffix}"


def find(
    paths: Sequence[str | Path] = (),
    *,
    output_dir: Path,
    step: int | None = None,
    occurrence: int | None = None,
    roles: Collection[str] | None = None,
    ranks: Ranks | None = None,
    elsewhere: Elsewhere | None = None,
    marked: bool = False,
) -> Found:
    """Find the inputs.

    Args:
        paths: run ids, run directories, the folder of a step, any folder with traces, trace files.
            Several directories of one run, from nodes that share no disk, are read as one. None:
            the newest run under `output_dir`.
        output_dir: the folder of the runs.
        step: which step of a run; by default the last one that was recorded.
        occurrence: which one, if the step's number was used several times; by default the last one.
        roles: only sources of these roles.
        ranks: only these ranks; an engine's workers are not ranks, and stay.
        elsewhere: what other nodes have of the run on disks of their own.
        marked: whether the caller can select a step that torch's profiler marked in a trace.

    Raises:
        ConfigError: there is no such run, step, file, role or rank; the message lists those that exist.
    """
    found = Found()
    runs: list[Path] = []
    plain: list[Path] = []
    for each in paths or (None,):
        path = None if each is None else Path(each)
        run = None if each is None else named_run(output_dir, str(each))
        if run is not None:
            runs.append(run.absolute())
            beside = None if path is None else left_beside(run, path)
            found.findings += [] if beside is None else [(str(path), beside)]
        elif path is not None and is_file(path):
            plain.append(path)
        elif path is not None and is_folder(path):
            next(path.iterdir(), None)  # an OSError if it may not be read
            number = step_number(resolved(path).name)
            if number is not None and is_run(resolved(path).parent):
                if step not in (None, number):
                    raise ConfigError(f"step {step}: {path} is step {number}")
                step = number
                runs.append(resolved(path).parent)
            else:
                plain.append(path)
        else:
            runs.append(find_run(output_dir, None if each is None else str(each)).absolute())
    # a file that is named twice, or through a link, is read once
    runs = list({resolved(run): run for run in reversed(runs)}.values())[::-1]
    plain = list({resolved(path): path for path in reversed(plain)}.values())[::-1]
    clocks = None
    _refuse_two_runs(runs)
    if runs:
        found.runs = runs
        there = [] if elsewhere is None else elsewhere(runs, step)
        found.step = there[0].step if there else find_step(runs, step)
        clocks = _from_runs(found, found.step, list(_parts(runs, found.step, there)), occurrence)
        if not plain:
            found.folder = runs[0] / step_folder(found.step)
    for path in plain:
        _from_files(found, path)
    if plain:
        if not found.inputs:
            names = ", ".join(f'"{path}"' for path in plain)
            ignored = "".join(f"; {problem}" for _, problem in found.findings)
            raise ConfigError(
                f"{names}: no run, no step and no trace (.json, .json.gz, .db of torch_npu) is there{ignored}"
            )
        _add_folders(found.inputs)
        found.folder = plain[0] if plain[0].is_dir() else plain[0].parent
        if not runs and len(plain) == 1 and plain[0].is_file():
            found.run_id, found.step = stated_step(plain[0])
            if found.run_id is None and not found.manifests:
                found.stem = _SUFFIXES.sub("", plain[0].name)
        _align_files(found, clocks)
        if step is not None and not runs:
            _select_marked(found, step, marked)
    found.inputs = with_held(
        found.inputs, (window for manifest in found.manifests for window in manifest["windows"])
    )
    found.considered = found.inputs
    if roles is not None:
        found.inputs = of_roles(found.inputs, found.manifests, roles)
    if ranks is not None:
        found.inputs = of_ranks(found.inputs, ranks)
    return found


def _parts(runs: Sequence[Path], step: int, there: Sequence[Gathered]) -> Iterator[Gathered]:
    """Yield the data of the directories here and of other nodes.

    A node that shares the disk reports the same data again, which is left out.
    """
    known: set[object] = set()
    here = [gather(run, step) for run in runs if step in steps(run)]
    for number, part in enumerate([*here, *there]):
        new = [(each, fragment) for each, fragment in part.inputs if each.paths not in known]
        fresh = {
            kind: [entry for entry in part.manifest[kind] if _named(kind, entry) not in known]
            for kind in ("windows", "engines")
        }
        findings = [each for each in part.findings if each not in known]
        if number < len(here) or new or any(fresh.values()):
            yield replace(part, manifest={**part.manifest, **fresh}, inputs=new, findings=findings)
        known.update(each.paths for each, _ in part.inputs)
        known.update(_named(kind, entry) for kind in fresh for entry in part.manifest[kind])
        known.update(part.findings)


def _named(kind: str, entry: Mapping[str, Any]) -> object:
    """Return what distinguishes a window or an engine of a run from all others."""
    keys = ("fragment", "host", "boot_id", "pid", "rank", "role", "replica", "occurrence", "start_unix_ns")
    return (kind, *(str(entry.get(key)) for key in keys))


def gather(run: Path, step: int) -> Gathered:
    """Return the files of a step in one run directory; also called on other nodes."""
    manifest = read_step(run, step)
    recorded = Recorded(run, step)
    recorded.take(manifest)
    findings = [
        (finding["fragment"], finding["fragment"], finding["problem"]) for finding in manifest["findings"]
    ]
    traces: list[tuple[Input, str | None]] = [*recorded.traces]
    spans: list[tuple[Input, str | None]] = []
    try:
        spans += [(each, None) for each in span_inputs(run, step)]
    except OSError as error:
        recorded.findings.append((None, None, f"the spans cannot be read: {error.strerror}"))
    return Gathered(run, manifest, read_clocks(run, step), traces + spans, findings + recorded.findings)


def _refuse_two_runs(runs: Sequence[Path]) -> None:
    """Raise ConfigError if the directories belong to two runs, also if both have the same id."""
    first = run_id_of(runs[0]) if runs else ""
    for run in runs[1:]:
        if run_id_of(run) != first:
            raise ConfigError(
                f'run "{run}" is {run_id_of(run)}, and "{runs[0]}" is {first}: a timeline covers one run; compare two with "stepprof report A B"'
            )
    parts = parts_of_one_run(runs)
    if len(parts) > 1:
        one, other = parts[0][0], parts[1][0]
        reason = why_apart(evidence_of(one), evidence_of(other))
        raise ConfigError(
            f'run "{one}" and run "{other}" are both called {first} and are two runs: {reason}; name one of them, or compare the two with "stepprof report A B"'
        )


def _from_runs(found: Found, step: int, parts: Sequence[Gathered], wanted: int | None) -> Clocks:
    # names of fragments are unique within one directory only
    marks = [f"{number}/" for number in range(len(parts))]
    found.run_id = str(parts[0].manifest["run_id"])
    unique = {
        each.paths: (each, None if fragment is None else mark + fragment)
        for mark, part in reversed(list(zip(marks, parts, strict=True)))
        for each, fragment in reversed(part.inputs)
    }
    windows = [window for part in parts for window in part.manifest["windows"]]
    inputs = with_machines((each for each, _ in reversed(unique.values())), windows)
    written = [
        {**entry, "fragment": mark + entry["fragment"]}
        for mark, part in zip(marks, parts, strict=True)
        for entry in part.clocks
    ]
    clocks = Clocks.of(written, [each.origin for each in inputs])
    of = Occurrence(
        {mark: part.manifest for mark, part in zip(marks, parts, strict=True)}, clocks, wanted, step
    )
    found.occurrence, found.occurrences = of.number, of.count
    unsure = (
        f"captures of {host} may be of another occurrence of step {step}: there are fewer than of other hosts, and its clock was never compared"
        for host in of.unsure
    )
    notes = (*clocks.findings, *occurrence_note(of.count, of.number, step), *sentences(windows), *unsure)
    found.findings += [(None, note) for note in notes]
    for mark, part in zip(marks, parts, strict=True):
        found.manifests.append(of_fragments(part.manifest, partial(of.has, mark=mark)))
        found.findings += [
            (source, problem)
            for fragment, source, problem in part.findings
            if fragment is None or of.has(fragment, mark=mark)
        ]
    found.findings += [(None, sentence) for sentence in _absent(found.runs, found.manifests)]
    for each, (_, fragment) in zip(inputs, reversed(unique.values()), strict=True):
        alignment = clocks.alignment(each.origin, fragment)
        if fragment is None:
            found.inputs.append(
                replace(each, alignment=alignment, portion=of.portion(each.origin, alignment))
            )
        elif of.has(fragment):
            placed = replace(
                each, alignment=alignment, wall_ahead_ns=clocks.wall_ahead_ns(each.origin, fragment)
            )
            found.inputs.append(_with_window(placed, clocks, fragment))
    found.inputs = without_superseded(found.inputs, step)
    for mark, manifest in zip(marks, found.manifests, strict=True):
        for window in manifest["windows"]:
            origin = Origin(
                "rank", "", rank=window["rank"], host=window["host"], pid=window["pid"],
                machine=window["boot_id"], pid_namespace=window["pid_namespace"],
            )  # fmt: skip
            found.placed[process_of(window)] = clocks.alignment(origin, f"{mark}{window['fragment']}")
    return clocks


def _with_window(each: Input, clocks: Clocks, fragment: str) -> Input:
    """Return the input with the window of its capture on the common clock, if it has one."""
    if each.window is None:
        return each
    driver = clocks.alignment(Origin("rank", "", machine=each.driver), fragment)
    return replace(each, window=each.window.placed(driver, each.alignment))


def _absent(runs: Sequence[Path], manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Report ranks without a window, for all directories together."""
    together = {
        "windows": [window for manifest in manifests for window in manifest["windows"]],
        "engines": [engine for manifest in manifests for engine in manifest["engines"]],
    }
    return absent_ranks(runs[0], together)


def _from_files(found: Found, path: Path) -> None:
    single = path.is_file()
    files = [path] if single else sorted(file for file in path.rglob("*") if file.is_file())
    passed: list[str] = []
    packed: list[str] = []
    merged: list[str] = []
    headed: list[tuple[Path, Origin, bool]] = []
    for file in files:
        if not single and not _may_be_trace(file):
            packed += [readable(file.relative_to(path).as_posix())] if is_packed_name(file.name) else []
            continue
        shown = readable(file.name if single else file.relative_to(path).as_posix())
        parts = None if single else merged_from(file.name)
        if parts is not None and any(
            each.name.startswith(parts) and each.parent == file.parent for each in files
        ):
            merged.append(shown)
            continue
        origin, problems = origin_of_file(file, shown)
        headed.append((file, origin, not single and (bool(problems) or not_a_trace(file) is not None)))
    alike = {_NUMBER.sub("0", file.name) for file, _, is_doubtful in headed if not is_doubtful}
    for file, origin, is_doubtful in headed:
        if is_doubtful and not _is_damaged_trace(file, alike):
            passed.append(origin.path)
            continue
        found.inputs.append(Input(origin, (str(resolved(file)),), file.stat().st_size))
    for what, those in (
        ("JSON files that are not traces ignored", passed),
        ("files that have other traces of the folder once more left out", merged),
        ("files in a form that is not read ignored (decompress archives, convert lines of JSON)", packed),
    ):
        if those:
            more = f" and {len(those) - _MOST_NAMED} more" if len(those) > _MOST_NAMED else ""
            found.findings.append((str(path), f"{what}: {', '.join(those[:_MOST_NAMED])}{more}"))


def _is_damaged_trace(file: Path, names: Collection[str]) -> bool:
    """Return whether a file whose start is no trace is a damaged one: it has "trace" in its name, or it is a rank's file that is
    named like the other traces.

    Args:
        file: a file in a folder.
        names: the names of the other traces, every number in them replaced by 0.
    """
    is_alike = worker_of(file.name) is not None and _NUMBER.sub("0", file.name) in names
    return ("trace" in file.name.lower() or is_alike) and may_be_damaged(file)


def _may_be_trace(file: Path) -> bool:
    """Add a file, recognised by its name. A database is added only if the JSON of the same
    recording is missing.
    """
    if is_database(file.name):
        return not file.with_name("trace_view.json").exists()
    return file.name.endswith(TRACES) and is_trace_name(file.name)


def _add_folders(inputs: list[Input]) -> None:
    """Show files of the same name with their folders, and those with a time in their names without it."""
    names = Counter(each.origin.path for each in inputs)
    for number, each in enumerate(inputs):
        if names[each.origin.path] > 1:
            path = readable(Path(each.paths[0]).as_posix())
            inputs[number] = replace(each, origin=replace(each.origin, path=path))
    origins = shortened([each.origin for each in inputs])
    inputs[:] = [replace(each, origin=origin) for each, origin in zip(inputs, origins, strict=True)]


def _select_marked(found: Found, step: int, possible: bool) -> None:
    """Select a step that torch's profiler marked, in the traces that stepprof did not record."""
    if found.step == step:
        return
    if found.step is not None:
        raise ConfigError.at("--step", step, f"the trace is of step {found.step}")
    if not possible:
        raise ConfigError.at(
            "--step",
            step,
            "traces that stepprof did not record stay whole here; `stepprof report` selects a step of them",
        )
    found.inputs = [
        replace(each, marked_step=step) if each.origin.kind == "trace" else each for each in found.inputs
    ]


def _align_files(found: Found, of_runs: Clocks | None) -> None:
    """Place traces without a manifest. Those of one host share its clock.

    It was compared with other clocks only if a run is read as well.
    """
    clocks = of_runs or Clocks.of([], [each.origin for each in found.inputs])
    alone = len(found.inputs) == 1
    for number, each in enumerate(found.inputs):
        if each.alignment.method == "unmeasured":
            alignment = Alignment("reference") if alone else clocks.alignment(each.origin)
            found.inputs[number] = replace(each, alignment=alignment, alone=alone)
