"""Mark the tests with the real verl. They run in the environment of `nox -s verl`, and only if they
are named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn warnings of stepprof into errors; ignore those of verl and its dependencies."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("error:::stepprof"), append=False)
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)
            item.add_marker(pytest.mark.slow)
