"""What the links to a vLLM engine share, which is an object of this process or a server."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprof.log import logger

if TYPE_CHECKING:
    from stepprof.remote.vllm.arguments import Settings


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of an engine when it was armed."""

    settings: Settings
    takes: Container[str]
    """The parameters of its ``start_profile``."""


class Link:
    """Calls to one engine."""

    def __init__(self, name: str, key: str, called: str) -> None:
        self.name = name
        self.key = key
        self.called = called
        """The name in messages, with its kind."""
        self._logged: set[str] = set()

    def warn(self, reason: str) -> None:
        """Log a limitation once."""
        if reason not in self._logged:
            self._logged.add(reason)
            logger.warning("engine.limited", name=self.name, reason=reason)
