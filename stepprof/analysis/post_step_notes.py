"""Describe what happened after a recording: deletions with reasons, uploads, the result of a
command.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stepprof.formatting import duration, size


def pruned_paths(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return why and when artifacts of a step were deleted, by path below the step's folder."""
    return {path: _when_and_why(entry) for entry in manifest["pruned"] for path in entry["paths"]}


def after_notes(manifest: Mapping[str, Any], *, all_well: bool = True) -> list[str]:
    """Return a line for each action after the recording of a step. Successful actions share a line."""
    notes = []
    uploaded = [each for each in manifest["uploads"] if each["status"] == "uploaded"]
    if uploaded and all_well:
        total = sum(each["bytes"] or 0 for each in uploaded)
        where = str(uploaded[0]["url"]).removesuffix(f"/{uploaded[0]['path']}")
        notes.append(
            f"uploaded: {len(uploaded)} artifact{'s' * (len(uploaded) > 1)}, {size(total)}, to {where}"
        )
    notes += [
        f"not uploaded: {each['path']}: {each['error']}"
        for each in manifest["uploads"]
        if each["status"] != "uploaded"
    ]
    for each in manifest["completions"]:
        if each["status"] == "complete" and not all_well:
            continue
        took = "" if each["seconds"] is None else f" after {duration(each['seconds'])} s"
        reason = f": {each['error']}" if each["error"] else ""
        command = " ".join(each["command"])[:60]
        notes.append(f"on_complete ({command}): {each['status']}{took}{reason}")
        if each["status"] == "failed" and each["output"].strip():
            notes.append(f"  output: {each['output'].strip().splitlines()[-1][:200]}")
    for each in manifest["pruned"]:
        notes.append(f"pruned: {each['files']} artifacts, {size(each['bytes'])}, {_when_and_why(each)}")
        notes += [f"  not deleted: {kept}" for kept in each["kept"]]
    return notes


def _when_and_why(entry: Mapping[str, Any]) -> str:
    seconds = (entry["unix_ns"] or 0) / 1e9
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "at an unknown time"
    lost = f", {entry['not_uploaded']} not uploaded" if entry["not_uploaded"] else ""
    return f"deleted {when} ({entry['reason']}{lost})"
