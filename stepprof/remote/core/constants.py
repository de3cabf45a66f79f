"""Constants of engine entries that several modules use."""

from __future__ import annotations

LOST = "the process ended before the engine's capture was stopped"
"""The reason in an entry that is written before its engine starts."""

RANKS = ("rank", "spans")
"""Kinds that are sessions of other processes: they write their own manifests and files."""
