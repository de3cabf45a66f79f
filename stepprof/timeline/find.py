"""What there is to be read: from runs, steps, folders and files to a list of inputs, each small enough to travel to a worker.

What only this module knows: which files of a run make one step, and how other tools name theirs.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepprof.errors import ConfigError
from stepprof.manifest import find_run, is_run, read_clocks, read_step, steps
from stepprof.rundir import SPANS, step_folder, step_number
from stepprof.selection import Ranks
from stepprof.summary import SESSIONS, absent_ranks, engine_label, told_once
from stepprof.timeline.clocks import Clocks, describe, worst_error
from stepprof.timeline.model import Alignment, Origin
from stepprof.timeline.names import is_trace_name, origin_of_file, worker_of
from stepprof.timeline.spanfiles import span_files

__all__ = ["Found", "Input", "find"]

TRACES = (".json", ".json.gz")
WITHOUT_TRACE = ("joined",)
UNMEASURED = Alignment("unmeasured", 0, None)


@dataclass(frozen=True, slots=True)
class Input:
    """One source that can be loaded."""

    origin: Origin
    paths: tuple[str, ...]
    """The file; of spans the rolling files of one process, in order."""
    bytes: int
    status: str | None = None
    """The outcome in the manifest; None where there is none."""
    alignment: Alignment = UNMEASURED
    """How its host's clock comes onto the common one."""
    step: int | None = None
    """Of spans: those of this step alone."""


@dataclass(slots=True)
class Found:
    """What `find` found."""

    inputs: list[Input] = field(default_factory=list)
    manifests: list[dict[str, Any]] = field(default_factory=list)
    """Of each run directory the manifest of the step."""
    findings: list[tuple[str | None, str]] = field(default_factory=list)
    """What brought nothing, and what is damaged: (whose it is, the problem)."""
    run_id: str | None = None
    step: int | None = None
    folder: Path | None = None
    """The step's folder (of the first run directory), where what is made of it goes; of other traces the folder that they lie in."""

    @property
    def clock(self) -> str:
        """How the inputs come onto one clock, in a sentence."""
        return describe(each.alignment for each in self.inputs)

    @property
    def clock_error_ns(self) -> int | None:
        """By how much a time may be wrong at most; None: nobody knows."""
        return worst_error(each.alignment for each in self.inputs)


def find(
    paths: Sequence[str | Path] = (),
    *,
    output_dir: Path,
    step: int | None = None,
    roles: Collection[str] | None = None,
    ranks: Ranks | None = None,
) -> Found:
    """Find what is to be read.

    Args:
        paths: run ids, run directories (several of one run, from nodes that share no disk, are read as one), the folder of a step, any folder with traces, trace files; none: the newest
            run under `output_dir`.
        output_dir: the folder that holds runs.
        step: which step of a run; by default the last one that was recorded.
        roles: only sources of these.
        ranks: only these ranks; an engine's workers are not ranks, and stay.

    Raises:
        ConfigError: there is no such run, step, file or role; says which there are.
    """
    runs: list[Path] = []
    plain: list[Path] = []
    for each in paths or (None,):
        path = None if each is None else Path(each)
        if path is not None and path.is_file():
            plain.append(path)
        elif path is not None and path.is_dir() and not _has_runs(path):
            number = step_number(path.resolve().name)
            if number is not None and is_run(path.resolve().parent):
                if step not in (None, number):
                    raise ConfigError(f"step {step}: {path} is step {number}")
                step = number
                runs.append(path.resolve().parent)
            else:
                plain.append(path)
        else:
            runs.append(find_run(output_dir, None if each is None else str(each)).absolute())
    found = Found()
    if runs:
        found.step = _chosen_step(runs, step)
        _from_runs(found, runs, found.step)
        if len(plain) == 0:
            found.folder = runs[0] / step_folder(found.step)
    for path in plain:
        _from_files(found, path)
    if plain:
        found.folder = plain[0] if plain[0].is_dir() else plain[0].parent
        _align_files(found)
    _select(found, roles, ranks)
    return found


def _has_runs(path: Path) -> bool:
    return is_run(path) or any(is_run(child) for child in path.iterdir() if child.is_dir())


def _chosen_step(runs: Sequence[Path], step: int | None) -> int:
    recorded = sorted({number for run in runs for number in steps(run)})
    if not recorded:
        raise ConfigError(f'run "{runs[0]}": no step is recorded; "stepprof check" says what is there')
    if step is None:
        return recorded[-1]
    if step not in recorded:
        nearest = min(recorded, key=lambda other: abs(other - step))
        raise ConfigError(f"step {step}: not recorded in {runs[0]}; the nearest that is: {nearest}")
    return step


def _from_runs(found: Found, runs: Sequence[Path], step: int) -> None:
    told: list[dict[str, Any]] = []
    gathered: list[tuple[Input, str | None]] = []
    for number, run in enumerate(dict.fromkeys(runs)):
        # names of fragments are unique within one directory alone
        mark = f"{number}/"
        if step not in steps(run):
            continue
        manifest = read_step(run, step)
        if found.run_id is not None and manifest["run_id"] != found.run_id:
            raise ConfigError(
                f'run "{run}" is {manifest["run_id"]}, and "{runs[0]}" is {found.run_id}: one timeline is of one run; compare two with "stepprof report A B"'
            )
        found.run_id = str(manifest["run_id"])
        found.manifests.append(manifest)
        found.findings += [(finding["fragment"], finding["problem"]) for finding in manifest["findings"]]
        told += [{**entry, "fragment": mark + entry["fragment"]} for entry in read_clocks(run, step)]
        for each, written in [*_windows(found, run, step, manifest), *_engines(found, run, step, manifest)]:
            gathered.append((each, mark + written))
        for each in span_inputs(run, step):
            gathered.append((each, None))
    found.findings += [(None, sentence) for sentence in _absent(runs, found.manifests)]
    unique = {each.paths: (each, fragment) for each, fragment in reversed(gathered)}
    gathered = list(reversed(unique.values()))
    clocks = Clocks.of(told, [each.origin.host for each, _ in gathered])
    for each, fragment in gathered:
        found.inputs.append(replace(each, alignment=clocks.alignment(each.origin.host, fragment)))


def _absent(runs: Sequence[Path], manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ranks that should have a window; told of all directories together."""
    if not manifests:
        return []
    together = {
        "windows": [window for manifest in manifests for window in manifest["windows"]],
        "engines": [engine for manifest in manifests for engine in manifest["engines"]],
    }
    return absent_ranks(runs[0], together)


def _windows(found: Found, run: Path, step: int, manifest: Mapping[str, Any]) -> Iterable[tuple[Input, str]]:
    for window in manifest["windows"]:
        origin = Origin(
            "rank",
            "",
            window["role"],
            window["rank"],
            None,
            window["host"],
            window["pid"] if isinstance(window["pid"], int) else None,
            int(window["occurrence"] or 1),
        )
        yield from _artifacts(found, run, step, window, origin)


def _engines(found: Found, run: Path, step: int, manifest: Mapping[str, Any]) -> Iterable[tuple[Input, str]]:
    for engine in told_once(manifest["engines"]):
        if engine["kind"] in SESSIONS and not engine["artifacts"]:
            continue
        origin = Origin(
            "engine",
            "",
            engine["role"],
            None,
            None if engine["replica"] is None else int(engine["replica"]),
            engine["host"],
            None,
            int(engine["occurrence"] or 1),
        )
        yield from _artifacts(found, run, step, engine, origin)


def _artifacts(
    found: Found, run: Path, step: int, entry: Mapping[str, Any], origin: Origin
) -> Iterable[tuple[Input, str]]:
    """The traces that an entry of the manifest names; what it names and is not there is told."""
    folder = step_folder(step)
    named = [f"{folder}/{artifact['path']}" for artifact in entry["artifacts"]]
    capture = entry["capture"]
    if (
        not named
        and isinstance(capture, dict)
        and isinstance(capture.get("step"), int)
        and capture["step"] != step
    ):
        # several steps in one capture: the trace lies in the first one's folder
        candidate = f"{step_folder(capture['step'])}/{capture.get('stem')}.trace.json.gz"
        if ".." not in candidate and (run / candidate).is_file():
            named = [candidate]
    label = origin.label if origin.kind == "rank" else engine_label(entry)
    for name in named:
        file = run / name
        if not name.endswith(TRACES):
            found.findings.append((label, f"{name} is no trace of a kind that is read here: left out"))
            continue
        try:
            size = file.stat().st_size
        except OSError as error:
            found.findings.append((label, f"{name} is in the manifest and cannot be read: {error.strerror}"))
            continue
        rank = worker_of(file.name) if origin.kind == "engine" else origin.rank
        yield (
            Input(replace(origin, path=name, rank=rank), (str(file),), size, entry["status"]),
            entry["fragment"],
        )
    if entry["status"] not in ("complete", *WITHOUT_TRACE):
        reason = f": {entry['error']}" if entry["error"] else ""
        found.findings.append((label, f"{entry['status']}{reason}"))


def span_inputs(run: Path, step: int) -> Iterable[Input]:
    """The span files of a run, those of one process together."""
    for group in span_files(run / SPANS):
        yield Input(
            Origin("spans", f"{SPANS}/{group.files[0].name}", None, group.rank, None, group.host, group.pid),
            tuple(str(file) for file in group.files),
            sum(file.stat().st_size for file in group.files),
            step=step,
        )


def _from_files(found: Found, path: Path) -> None:
    files = (
        [path]
        if path.is_file()
        else sorted(file for file in path.rglob("*") if file.name.endswith(TRACES) and file.is_file())
    )
    base = path.parent if path.is_file() else path
    for file in files:
        shown = file.relative_to(base).as_posix()
        if path.is_dir() and not is_trace_name(file.name):
            continue
        origin = origin_of_file(file, shown)
        found.inputs.append(Input(origin, (str(file),), file.stat().st_size))
    if not files:
        raise ConfigError(f'"{path}": no run, no step and no trace (.json, .json.gz) is there')


def _align_files(found: Found) -> None:
    """Traces without a manifest: those of one host share its clock; nobody has compared it with another one's."""
    clocks = Clocks.of([], [each.origin.host for each in found.inputs])
    alone = len(found.inputs) == 1
    for number, each in enumerate(found.inputs):
        if each.alignment.method == "unmeasured":
            alignment = Alignment("reference") if alone else clocks.alignment(each.origin.host)
            found.inputs[number] = replace(each, alignment=alignment)


def _select(found: Found, roles: Collection[str] | None, ranks: Ranks | None) -> None:
    if roles is not None:
        known = sorted({each.origin.role for each in found.inputs if each.origin.role})
        for role in roles:
            if role not in known:
                near = difflib.get_close_matches(role, known, 1)
                hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(known) or 'none'}"
                raise ConfigError(f'roles: "{role}" recorded nothing in this step; {hint}')
        found.inputs = [
            each for each in found.inputs if each.origin.kind == "spans" or each.origin.role in roles
        ]
    if ranks is not None:
        found.inputs = [
            each for each in found.inputs if each.origin.kind == "engine" or each.origin.rank in ranks
        ]
