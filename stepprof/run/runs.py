"""Find the runs of a folder and the steps of a run, and read `run.json`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepprof.errors import ConfigError
from stepprof.host.plain_files import read_table
from stepprof.run.fields import LONGEST_NAME, cut, wrong
from stepprof.run.layout import MANIFEST, SPANS, step_folder, step_number
from stepprof.run.names import RUN_FILE


def has_step(run: Path) -> bool:
    """Return whether a run has a recorded step."""
    return bool(steps(run))


def has_spans(run: Path) -> bool:
    """Return whether a run has a recorded step or a file of spans."""
    return has_step(run) or any((run / SPANS).glob("*.jsonl"))


def find_run(output_dir: Path, run: str | None = None, *, holds: Callable[[Path], bool] = has_step) -> Path:
    """Return the folder of a run.

    Args:
        output_dir: the folder that holds runs.
        run: a run id, or the path of a run or of a folder of runs. None: the run in ``output_dir`` that was recorded into last.
        holds: of several runs without a name, those for which this is true come first: worker processes may have left empty ones.

    Raises:
        ConfigError: no such run; the message says where it was searched and what is there.
    """
    if run is None:
        runs = list_runs(output_dir)
        if not runs:
            raise ConfigError(
                f'output_dir = "{output_dir}": no run is recorded there; name another folder with --output-dir, or record a first run with "stepprof demo"'
            )
        return next(filter(holds, reversed(runs)), runs[-1])
    places = _places(output_dir, run)
    found = named_run(output_dir, run) or next(filter(is_folder, places), None)
    if found is not None:
        return found
    known = ", ".join(path.name for path in reversed(list_runs(output_dir)[-5:]))
    raise ConfigError(
        f'run "{run}": neither a run under "{output_dir}" nor a folder; {f"the newest there: {known}" if known else "nothing is recorded there"}'
    )


def named_run(output_dir: Path, run: str) -> Path | None:
    """Return the run of a run id or a path; of a folder of runs, the run that was recorded into last. None: there is no run.

    A folder that is no run never hides a run of the same name. A path with a separator, such as ``./demo-1``, names what is there.
    """
    places = [place for place in _places(output_dir, run) if is_folder(place)]
    below = (runs[-1] for place in places if (runs := list_runs(place)))
    return next((place for place in places if is_run(place)), None) or next(below, None)


def _places(output_dir: Path, run: str) -> tuple[Path, ...]:
    """Return the paths that a text may name, the likeliest first."""
    here = Path(run)
    # not Path.exists(): it raises for a name that is too long
    return (here,) if os.sep in run and os.path.exists(here) else (output_dir / run, here)  # noqa: PTH110


def is_folder(path: Path) -> bool:
    """Return whether there is such a folder."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir() raises for a name that is too long


def list_runs(output_dir: Path) -> list[Path]:
    """Return the runs under ``output_dir``, the one with the latest recording last; empty if the
    folder does not exist.
    """
    try:
        folders = [path for path in output_dir.iterdir() if not path.name.startswith(".") and is_run(path)]
    except OSError:
        return []
    return sorted(folders, key=lambda path: (_last_recorded(path), path.name))


def is_run(path: Path) -> bool:
    """Return whether a folder is a run; False if it may not be read."""
    try:
        return (path / RUN_FILE).is_file() or bool(steps(path))
    except PermissionError:
        return False


def read_run(path: Path) -> dict[str, Any]:
    """Return the content of ``run.json``; empty if it is missing or damaged."""
    return _read_run(path)[0]


def run_problems(path: Path) -> list[str]:
    """Return the problems of `run.json`; none if it is missing."""
    return _read_run(path)[1]


def _read_run(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the valid fields of `run.json`, and its problems."""
    content, problem = load_table(path / RUN_FILE)
    if content is None:
        return {}, [problem] if os.path.lexists(path / RUN_FILE) else []
    problems = []
    for key, is_good in _RUN_FIELDS.items():
        if content.get(key) is not None and not is_good(content[key]):
            problems.append(f"damaged: {key} = {cut(content[key])}")
            del content[key]
    return content, problems


_RUN_FIELDS: dict[str, Callable[[Any], bool]] = {
    "run_id": lambda value: type(value) is str and 0 < len(value) <= LONGEST_NAME and "\0" not in value,
    "world_size": lambda value: wrong("world_size", value) is None,
    "created_unix_ns": lambda value: wrong("created_unix_ns", value) is None,
    "config": lambda value: isinstance(value, dict),
    "writer": lambda value: isinstance(value, dict),
}


def run_id_of(path: Path) -> str:
    """Return the id of a run: by `run.json`, else by its folder."""
    return str(read_run(path).get("run_id", path.name))


def steps(path: Path) -> list[int]:
    """Return the steps that have a folder in the run, in order."""
    try:
        with os.scandir(path) as entries:
            numbers = [step_number(entry.name) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return sorted(number for number in numbers if number is not None)


def load_table(file: Path) -> tuple[dict[str, Any] | None, str]:
    """Return a JSON object, or None and the reason."""
    try:
        return read_table(file), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except ValueError as error:
        return None, str(error)


def _last_recorded(path: Path) -> int:
    """Return the time of the last recording of a run. Later reports and merged timelines do not count."""
    places = [path / RUN_FILE, path / SPANS, *(path / step_folder(step) / MANIFEST for step in steps(path))]
    times = [0]
    for place in places:
        try:
            times.append(place.stat().st_mtime_ns)
        except OSError:  # missing, or removed meanwhile
            continue
    return max(times)
