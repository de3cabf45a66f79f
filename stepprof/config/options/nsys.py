"""Options of the nsys backend."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepprof.config.validators import checked, folder, seconds, settle, texts, whole
from stepprof.errors import ConfigError

ANY = "any"
_NAME = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_TEXT = re.compile(r"[A-Za-z0-9._:,/@%+=-]*", re.ASCII)
_RESERVED = {
    "trace": "trace",
    "output": "report_dir",
    "capture-range": None,
    "capture-range-end": "windows",
    "kill": None,
    "nvtx-domain-include": "domains",
    "sample": "sample",
    "cpuctxsw": "sample",
    "discard-environment": "keep_environment",
    "env-var": None,
    "force-overwrite": None,
}
"""Options that the commands of `stepprof.backends.nsys.backend` set themselves, and the key for each."""


def _report_dir(value: object, key: str) -> str:
    return str(folder(value, key))


def _words(value: object, key: str) -> tuple[str, ...]:
    found = texts(value, key)
    for word in found:
        if not _TEXT.fullmatch(word) or "," in word:
            problem = f'"{word}" is not one word; did you mean {[*_pieces(word)]}?'
            raise ConfigError.at(key, value, problem)
    return found


def _windows(value: object, key: str) -> int | str:
    if value == ANY:
        return ANY
    if isinstance(value, str):
        raise ConfigError.at(key, value, f'expected a number of windows, or "{ANY}"; did you mean "{ANY}"?')
    number: int = whole(1)(value, key)
    return number


def _pieces(word: str) -> list[str]:
    return [piece for piece in re.split(r"[^A-Za-z0-9._:/@%+=-]+", word) if piece] or ["nvtx"]


def _extra(value: object, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError.at(key, value, 'expected a table, such as { gpu-metrics-devices = "0" }')
    found = {}
    for name, setting in value.items():
        where = f"{key}.{name}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            plain = str(name).lstrip("-").lower()
            raise ConfigError.at(where, setting, f'not the name of an option; did you mean "{plain}"?')
        if name in _RESERVED:
            instead = _RESERVED[name]
            problem = f"did you mean nsys.{instead}?" if instead else "stepprof sets it; leave it out"
            raise ConfigError.at(where, setting, problem)
        text = str(setting).lower() if isinstance(setting, bool) else str(setting)
        if not _TEXT.fullmatch(text):
            raise ConfigError.at(where, setting, "contains a character that a shell would interpret")
        found[name] = text
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class NsysOptions:
    """What Nsight Systems records, and the folder of its reports.

    nsys fixes what it records when it launches the process: by `nsys_command` or `ray_runtime_env`.

    >>> NsysOptions(trace=["cuda", "nvtx"]).trace
    ('cuda', 'nvtx')
    """

    trace: Sequence[str] = checked(("cuda", "nvtx"), _words)
    """What nsys traces, in its own words: "cuda", "nvtx", "cublas", "cudnn", "nccl", "osrt", "ucx", …"""
    sample: bool = False
    """Sample CPU stacks and trace context switches."""
    domains: Sequence[str] | None = checked(None, _words)
    """The NVTX domains that nsys keeps, such as ["stepprof", "NCCL"]; None: all."""
    windows: int | str | None = checked(None, _windows)
    """Number of windows of a process in the whole run; "any": unknown; None: computed from the
    steps, roles and capture_per.
    """
    keep_environment: bool = False
    """Keep the environment variables, with all secrets, in the reports."""
    report_dir: str | None = checked(None, _report_dir)
    """The folder of the reports, if you start nsys by a command of your own; None: that of
    `nsys_command` or Ray.
    """
    report_timeout_seconds: float = checked(300.0, seconds)
    """How long the background thread waits for a report after its window."""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False, metadata={"check": _extra})
    """More options of `nsys profile`, without their dashes, such as { cuda-graph-trace = "node" }."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(self)
