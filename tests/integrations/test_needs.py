"""Every adapter checks all names that it patches before it patches any."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stepprof.integrations import areal
from stepprof.integrations.activation import adapters
from stepprof.integrations.patches import Patches


class Recorder(Patches):
    """Patches that are recorded, not made."""

    def __init__(self):
        super().__init__("test")
        self.targets = set()

    def _replace(self, target, make):
        self.targets.add(target)


@pytest.mark.parametrize("adapter", [*adapters()], ids=lambda each: each.name)
def test_every_patch_is_among_the_needs(adapter, monkeypatch) -> None:
    """Every function that the adapter patches is among the names that it checks before."""
    tracer = ModuleType(areal.TRACER)
    tracer.trace_scope = tracer.atrace_scope = print
    monkeypatch.setitem(sys.modules, areal.TRACER, tracer)  # the adapter searches its importers
    monkeypatch.setenv("STEPPROF_FROM", "framework")
    recorder = Recorder()
    adapter.attach(recorder)
    assert recorder.targets <= set(adapter.needs)
