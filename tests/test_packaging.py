"""What ships: every subpackage, the examples, the marker for types."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import stepprof

ROOT = Path(__file__).parent.parent


class TestPackages:
    def test_every_folder_of_the_package_is_listed(self) -> None:
        """A folder with modules that pyproject.toml does not list would be missing from the wheel."""
        (listed,) = re.findall(
            r"^packages = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
        )
        package = Path(next(iter(stepprof.__path__)))
        folders = {path.parent for path in package.rglob("*.py")}
        names = {".".join(("stepprof", *folder.relative_to(package).parts)) for folder in folders}
        assert sorted(names | {"stepprof.examples"}) == sorted(re.findall(r'"([^"]+)"', listed))

    def test_the_examples_ship_with_their_data(self) -> None:
        """The prompts of the example loop lie beside it, in a checkout and in an installation."""
        examples = files("stepprof.examples")
        assert [name for name in ("grpo.py", "arithmetic.jsonl") if not (examples / name).is_file()] == []

    def test_types_are_announced(self) -> None:
        """Type checkers read the package's own annotations."""
        assert (files("stepprof") / "py.typed").is_file()
