"""The examples in docstrings give the documented results, and the links of pages exist."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import stepprof

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(stepprof.__path__, "stepprof.")
    if not module.name.startswith("stepprof.examples")
)
PAGES = sorted([*Path(__file__).parents[2].glob("*.md"), *Path(__file__).parents[2].glob("docs/**/*.md")])


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples in the docstrings of a module give the documented results."""
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """Each relative link of a page leads to a file that exists."""
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
