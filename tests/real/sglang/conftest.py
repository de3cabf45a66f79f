"""Provide the fixtures of the tests with the real SGLang on a CPU. The tests run in the environment
of `nox -s sglang`, and only if they are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sglang_host import Host

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests as slow, with a timeout of 600 s, because an engine starts slowly."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the tiny model."""
    import sglang_tiny

    return sglang_tiny.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def host(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Return the process with the engine for all tests that do not change it. Its first window was
    recorded before its first use.
    """
    import sglang_scenarios
    from sglang_host import Host

    made = Host(
        model,
        tmp_path_factory.mktemp("host") / "log",
        before=sglang_scenarios.first_window,
        before_arguments=(tmp_path_factory.mktemp("first"),),
    )
    yield made
    made.close()
