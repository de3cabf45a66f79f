"""An adapter that is made of hooks looks up each function that it patches."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stepprof.integrations.adapter import missing_names
from stepprof.integrations.hooks import around, block, hooked, result, timed
from stepprof.integrations.patches import Patches


@pytest.fixture
def framework(monkeypatch):
    """A framework with two functions."""
    module = ModuleType("hooked_framework")
    module.load = lambda path: path
    module.save = lambda path: path
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def adapter(hooks, needs=None):
    return hooked("fake", "hooked_framework:load", hooks, needs, distributions=("structlog",), tested=">=1")


class TestHooked:
    def test_targets_are_needed_with_their_parameters(self) -> None:
        """Each target is looked up, besides what else the adapter needs."""
        hooks = [
            around("m:a", None, needs=("x",)),
            block("m:b", print, print, needs=("y",)),
            result("m:c", print),
            timed("m:d", "d"),
        ]
        expected = {"m:a": ("x",), "m:b": ("y",), "m:c": (), "m:d": (), "m:e": ("z",)}
        assert adapter(hooks, {"m:e": ("z",)}).needs == expected

    def test_a_missing_parameter_is_found(self, framework) -> None:
        """A target that does not accept a parameter is reported before any patch is made."""
        made = adapter([around("hooked_framework:load", None, needs=("name",))])
        assert missing_names(made) == ["hooked_framework:load(name)"]

    def test_every_hook_is_patched(self, framework) -> None:
        """The patches of all hooks are made, and can be undone."""
        seen = []
        hooks = [
            around("hooked_framework:load", lambda *call: seen.append(call)),
            result("hooked_framework:save", lambda path, *_: path.upper()),
        ]
        patches = Patches("fake")
        adapter(hooks).attach(patches)
        assert (framework.load("a"), framework.save("b")) == ("a", "B")
        assert seen == [(None, ("a",), {})]
        patches.undo()
        assert framework.save("b") == "b"
