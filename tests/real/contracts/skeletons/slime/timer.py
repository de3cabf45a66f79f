"""Provide slime's timer, written for stepprof's tests, with its names."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from time import time


class Timer:
    """Stands for slime's timer. Each process has one."""

    _only = None

    def __new__(cls):
        if cls._only is None:
            cls._only = super().__new__(cls)
            cls._only.start_time = {}
        return cls._only

    def start(self, name):
        assert name not in self.start_time
        self.start_time[name] = time()

    def end(self, name):
        del self.start_time[name]

    @contextmanager
    def context(self, name):
        self.start(name)
        try:
            yield
        finally:
            self.end(name)


def timer(given):
    if isinstance(given, str):
        return Timer().context(given)

    @wraps(given)
    def timed(*args, **kwargs):
        with Timer().context(given.__name__):
            return given(*args, **kwargs)

    return timed


@contextmanager
def inverse_timer(name):
    Timer().end(name)
    try:
        yield
    finally:
        Timer().start(name)
