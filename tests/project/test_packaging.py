"""What ships: every subpackage, the examples, the marker for types."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import stepprof


class TestPackages:
    def test_every_folder_with_modules_is_a_package(self) -> None:
        """A folder without `__init__.py` is not found by setup.py, and would be missing from the wheel."""
        package = Path(next(iter(stepprof.__path__)))
        folders = {path.parent for path in package.rglob("*.py")}
        assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []

    def test_the_examples_ship_with_their_data(self) -> None:
        """The prompts of the example loop are next to it, in a checkout and in an installation."""
        examples = files("stepprof.examples")
        assert [name for name in ("grpo.py", "arithmetic.jsonl") if not (examples / name).is_file()] == []

    def test_types_are_announced(self) -> None:
        """Type checkers read the package's own annotations."""
        assert (files("stepprof") / "py.typed").is_file()
