"""Hold the result of a script that a test ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """The result of a script."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> Ran:
        """Return this result if the script succeeded. Otherwise fail with its output."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self
