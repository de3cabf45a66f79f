"""The project is written in plain English, without a short list of words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepprof

ROOT = Path(__file__).parents[2]
WORDS = (
    "is told",
    "are told",
    "nobody",
    "whoever",
    "somebody",
    "anybody",
    "what came of",
    "what became of",
    "what becomes of",
    "stands in the way",
    "the nearest:",
    "hand-over",
    "lets go",
    "last word",
    "owed",
)
PLACES = (
    *(
        ROOT / name
        for name in (
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "README.md",
            "SECURITY.md",
            "benchmarks",
            "docs",
            "examples",
            "noxfile.py",
        )
    ),
    Path(stepprof.__file__).parent,
)
"""The files and folders that are checked."""
_FOUND = re.compile(rf"\b({'|'.join(WORDS)})(?!\w)", re.IGNORECASE)


def files(place: Path) -> Iterator[Path]:
    """Return the files of prose and code in a place."""
    return (
        (each for each in sorted(place.rglob("*")) if each.suffix in (".py", ".md", ".toml"))
        if place.is_dir()
        else iter([place])
    )


class TestWords:
    @pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
    def test_words_of_the_dialect_are_not_used(self, place):
        """No file contains a word of the list. Write the actor and the noun: the background thread,
        pending exports, the result.
        """
        found = [
            f"{path}:{number}: {match[0]}"
            for path in files(place)
            for number, line in enumerate(path.read_text().splitlines(), 1)
            for match in _FOUND.finditer(line)
        ]
        assert found == []

    def test_a_word_is_found(self):
        """A word is found in upper and lower case, and only as a whole word."""
        assert [_FOUND.search(text) is not None for text in ("Nobody.", "the nearest: x", "allowed")] == [
            True,
            True,
            False,
        ]
