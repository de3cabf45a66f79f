"""How a script ended that a test ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """How a script ended."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> Ran:
        """Return this where the script ended well; else fail with all that it printed."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self
