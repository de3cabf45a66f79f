"""Select the sources of some roles and ranks."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepprof.analysis.timeline.manifest_sources import Input, windows_edges
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError

Manifests = Sequence[Mapping[str, Any]]


def of_roles(inputs: Sequence[Input], manifests: Manifests, roles: Collection[str]) -> list[Input]:
    """Return the sources of these roles, and the spans.

    The windows of a role may be in the capture of another role. Then the part from its first to its
    last window is selected.

    Raises:
        ConfigError: nothing was recorded of one role; the message lists the closest name or all roles.
    """
    joined = [
        window for manifest in manifests for window in manifest["windows"] if window["status"] == "joined"
    ]
    known = {each.origin.role for each in inputs} | {window["role"] for window in joined}
    named = sorted(role for role in known if role)
    for role in roles:
        if role not in named:
            near = difflib.get_close_matches(role, named, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(named) or 'none'}"
            raise ConfigError(f'roles: "{role}" recorded nothing in this step; {hint}')
    edges = windows_edges(window for window in joined if window["role"] in roles)
    kept = []
    for each in inputs:
        origin = each.origin
        if origin.kind == "spans":
            kept.append(replace(each, roles=tuple(roles)))
        elif origin.role in roles:
            kept.append(each)
        elif origin.kind == "rank" and origin.process in edges:
            kept.append(replace(each, within=edges[origin.process]))
    return kept


def of_ranks(inputs: Sequence[Input], ranks: Ranks) -> list[Input]:
    """Return the sources of these ranks, and the engines: their workers are not ranks.

    Raises:
        ConfigError: there are ranks, but none of these; the message lists the recorded ones.
    """
    kept = [each for each in inputs if each.origin.kind == "engine" or each.origin.rank in ranks]
    known = {
        each.origin.rank for each in inputs if each.origin.kind != "engine" and each.origin.rank is not None
    }
    if known and not any(each.origin.kind != "engine" for each in kept):
        shown = ", ".join(sorted(map(str, known), key=lambda rank: (not rank.isdigit(), len(rank), rank)))
        raise ConfigError(f'ranks: "{ranks}" recorded nothing in this step; must be one of: {shown}')
    return kept
