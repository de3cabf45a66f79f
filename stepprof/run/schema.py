"""The entries of a manifest, for writers and readers.

Every entry has every key. A reader accepts any content, of another process, another version or a
full disk: an invalid value is replaced by the default, and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_args

from stepprof.run.fields import LONGEST_NAME, cut, is_rank, is_step, path_problem, wrong
from stepprof.run.model import Outcome
from stepprof.run.reasons import ReasonCode, is_pending

STATUSES: tuple[str, ...] = get_args(Outcome)
_MOST_STATISTICS = 64
_LARGEST_STATISTIC = 1e15
LONGEST_OPTIONS = 1 << 16
"""Maximum number of characters of the options of a window."""

E = TypeVar("E", bound="Entry")
Check = Callable[[Any], "str | None"]
"""Returns the problem of a value, to follow it in a message; None: there is none."""


@dataclass(eq=False)
class Entry:
    """One entry of a list in a fragment.

    The background thread writes an entry while other threads change it: set fields that belong together by one `update`.
    """

    checks: ClassVar[Mapping[str, Check]] = {}
    """Checks of the fields that `stepprof.run.fields` does not know."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Fields that are not written while they are None."""

    other: dict[str, Any] = field(default_factory=dict, repr=False, kw_only=True)
    """Fields of a newer version."""

    def update(self, **values: object) -> None:
        """Set several fields at once. Raise TypeError for an unknown name."""
        unknown = values.keys() - vars(self).keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as it is written.

        >>> PrunedEntry(reason="keep_steps").to_dict()["files"] is None
        True
        """
        found = {**vars(self)}
        found.update(found.pop("other"))
        for key in self.optional:
            if found[key] is None:
                del found[key]
        return found

    @classmethod
    def from_dict(cls: type[E], data: Mapping[str, Any]) -> tuple[E, list[str]]:
        """Return the entry of a file, and its problems.

        >>> entry, problems = PrunedEntry.from_dict({"files": -1})
        >>> entry.files, problems
        (None, ['damaged: files = -1 is not between 0 and 2147483647'])
        """
        made, problems = cls(), []
        defaults = vars(made)
        known = {key: default for key, default in defaults.items() if key != "other"}
        for key, value in {**known, **data}.items():
            problem = cls._problem(key, value, known.get(key))
            if problem is not None:
                problems.append(f"damaged: {key} = {cut(value)} {problem}")
            elif key in known:
                defaults[key] = value
            else:
                made.other[key] = value
        return made, problems

    @classmethod
    def _problem(cls, key: str, value: object, default: object) -> str | None:
        check = cls.checks.get(key)
        if check is not None:
            return check(value)
        if isinstance(default, str):
            return None if isinstance(value, str) else "is not a string"
        if isinstance(default, list):
            return None if _is_texts(value) else "is not a list of strings"
        return wrong(key, value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _role(value: object) -> str | None:
    fits = value is None or (isinstance(value, str) and len(value) <= LONGEST_NAME)
    return None if fits else "is not a name"


def _status(value: object) -> str | None:
    return None if value in STATUSES else f"is none of {', '.join(STATUSES)}"


def _rank(value: object) -> str | None:
    return None if is_rank(value) else "is not a rank"


def _driver(value: object) -> str | None:
    return None if value is None else _rank(value)


def _capture(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        return "is not an object"
    if not is_step(value.get("step", 0)):
        return "has no valid step number"
    return "is not a path in a step's folder" if path_problem(value.get("stem", "x")) else None


def _statistics(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MOST_STATISTICS:
        return f"is not an object of at most {_MOST_STATISTICS} numbers"
    fits = all(isinstance(each, int | float) and 0 <= each <= _LARGEST_STATISTIC for each in value.values())
    return None if fits else "has a value that is not a valid number"


def _options(value: object) -> str | None:
    fits = value is None or (isinstance(value, dict) and len(str(value)) <= LONGEST_OPTIONS)
    return None if fits else f"is not an object of at most {LONGEST_OPTIONS} characters"


def _unchecked(value: object) -> None:
    return None


@dataclass(eq=False)
class CaptureEntry(Entry):
    """The common fields of windows and engines. Written ahead as `lost`, which is true if the process dies."""

    checks: ClassVar[Mapping[str, Check]] = {
        "role": _role,
        "status": _status,
        "capture": _capture,
        "artifacts": _unchecked,
    }

    role: str | None = None
    occurrence: int = 1
    visit: int = 1
    host: str | None = None
    status: Outcome = "lost"
    pending: bool = False
    reason_code: ReasonCode | None = None
    error: str | None = None
    body_error: str | None = None
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None
    start_seconds: float | None = None
    capped_by: str | None = None
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    capture: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls: type[C], data: Mapping[str, Any]) -> tuple[C, list[str]]:
        """Return the entry of a file, with its valid artifacts, and its problems."""
        made, problems = super().from_dict({"status": None, **data})
        made.pending = is_pending({"status": made.status, "pending": data.get("pending")})
        artifacts: Any = made.artifacts
        made.artifacts = []
        for artifact in artifacts if isinstance(artifacts, list) else [artifacts]:
            problem = _artifact_problem(artifact)
            if problem:
                problems.append(problem)
            else:
                made.artifacts.append({"kind": None, "events": None, **artifact})
        return made, problems


C = TypeVar("C", bound=CaptureEntry)


def _artifact_problem(artifact: object) -> str | None:
    """Return why an artifact is invalid, or None."""
    if not isinstance(artifact, dict):
        return f"damaged: an artifact without a path: {cut(artifact)}"
    path, size = artifact.get("path"), artifact.get("bytes")
    problem = path_problem(path)
    if problem is not None:
        return f"damaged: an artifact {problem}: {cut(path if isinstance(path, str) else artifact)}"
    if size is None or wrong("bytes", size):
        return f"damaged: an artifact without a size: {cut(path)}"
    for key in ("kind", "events"):
        problem = wrong(key, artifact.get(key))
        if problem is not None:
            return f"damaged: an artifact of which {key} = {cut(artifact[key])} {problem}: {cut(path)}"
    return None


@dataclass(eq=False)
class WindowEntry(CaptureEntry):
    """What one rank recorded of one window, or why it did not."""

    checks: ClassVar[Mapping[str, Check]] = {**CaptureEntry.checks, "rank": _rank, "options": _options}
    optional: ClassVar[tuple[str, ...]] = ("options", "export_note", "region")

    rank: int | str | None = None
    world_size: int | None = None
    pid: int | None = None
    thread: int | None = None
    backend: str | None = None
    options: dict[str, Any] | None = None
    arm_seconds: float | None = None
    arm_unix_ns: int | None = None
    wait_seconds: float | None = None
    cpu_seconds: float | None = None
    thread_cpu_seconds: float | None = None
    stall_seconds: float | None = None
    export_seconds: float | None = None
    export_note: str | None = None
    region: str | None = None


@dataclass(eq=False)
class EngineEntry(CaptureEntry):
    """The part of one attached engine or rank in one window."""

    checks: ClassVar[Mapping[str, Check]] = {
        **CaptureEntry.checks,
        "driver": _driver,
        "statistics": _statistics,
    }
    optional: ClassVar[tuple[str, ...]] = ("statistics",)

    driver: int | str | None = None
    replica: int | None = None
    kind: str | None = None
    name: str | None = None
    boot_id: str | None = None
    health: str | None = None
    stop_seconds: float | None = None
    overrun_seconds: float | None = None
    write_seconds: float | None = None
    statistics: dict[str, float | bool] | None = None


@dataclass(eq=False)
class UploadEntry(Entry):
    """The upload of one file, or of an artifact that is a folder."""

    path: str = ""
    url: str | None = None
    status: str = "failed"
    bytes: int | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(eq=False)
class CompletionEntry(Entry):
    """One run of the `on_complete` command."""

    command: list[str] = field(default_factory=list)
    status: str = "lost"
    error: str | None = None
    exit_status: int | None = None
    start_unix_ns: int | None = None
    seconds: float | None = None
    output: str = ""


@dataclass(eq=False)
class PrunedEntry(Entry):
    """Artifacts that were deleted because a budget was exceeded."""

    unix_ns: int | None = None
    reason: str = ""
    files: int | None = None
    bytes: int | None = None
    not_uploaded: int | None = None
    kept: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


AFTER: Mapping[str, type[Entry]] = {
    "uploads": UploadEntry,
    "completions": CompletionEntry,
    "pruned": PrunedEntry,
}
"""The entries of the work after a step, by the key of their list."""
