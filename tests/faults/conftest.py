"""The kind of the simulated engines is installed as another package would be."""

from __future__ import annotations

import pytest

from faults.engines import install


@pytest.fixture(autouse=True)
def kind(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install it."""
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.syspath_prepend(folder)
