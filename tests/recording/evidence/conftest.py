"""Threads that run until the end of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest


class Threads:
    """Threads that run until the end of a test."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.started: list[threading.Thread] = []

    def start(self, count: int, target: Callable[[], object], name: str | None = None) -> set[int]:
        new = [threading.Thread(target=target, name=name, daemon=True) for _ in range(count)]
        for thread in new:
            thread.start()
        self.started += new
        return {thread.native_id for thread in new}

    def idle(self, count: int) -> set[int]:
        return self.start(count, self.over.wait)

    def work(self) -> None:
        while not self.over.is_set():
            time.sleep(0.01)

    def busy(self, count: int, name: str | None = None) -> set[int]:
        return self.start(count, self.work, name)


@pytest.fixture
def threads() -> Iterator[Threads]:
    found = Threads()
    yield found
    found.over.set()
    for thread in found.started:
        thread.join(30)
