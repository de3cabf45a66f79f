"""The simulated engines' kind is installed in the way of another package."""

from __future__ import annotations

import pytest

from faults.engines import install


@pytest.fixture(autouse=True)
def kind(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the kind of the simulated engines."""
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.syspath_prepend(folder)
