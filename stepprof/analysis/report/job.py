"""Read from `run.json` what the report says about the job. The file may be of another version, or damaged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.analysis.report.schema import Job
from stepprof.run.fields import LONGEST_NAME
from stepprof.run.runs import read_run

__all__ = ["job_of"]

MOST_ARGUMENTS = 400
MOST_ENTRIES = 64
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def job_of(runs: Sequence[Path]) -> Job | None:
    """Return the job of a run, by the first of its folders that describes it; None: none does."""
    for run in runs:
        content = read_run(run)
        if content:
            return _job(content)
    return None


def _job(content: dict[str, Any]) -> Job:
    commit, versions, adapters = (
        content.get("commit"),
        _table(content, "versions"),
        _table(content, "adapters"),
    )
    attached = {name: state for name, state in adapters.items() if isinstance(state, dict)}
    models = [model for state in attached.values() if (model := _text(state.get("model")))]
    return Job(
        command=_texts(content.get("command")),
        commit=commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None,
        world_size=content.get("world_size"),
        model=models[0] if models else None,
        versions={name: text for name, text in versions.items() if _text(text)},
        platform=_text(content.get("platform")),
        adapters=[
            name for name, state in attached.items() if state.get("status") in ("attached", "untested")
        ],
    )


def _table(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object of the file, its first entries that have proper names."""
    value = content.get(key)
    entries = list(value.items())[:MOST_ENTRIES] if isinstance(value, dict) else []
    return {name: each for name, each in entries if _text(name)}


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        return []
    return [each for each in value[:MOST_ARGUMENTS] if isinstance(each, str)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_NAME else None
