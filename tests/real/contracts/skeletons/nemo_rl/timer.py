"""Provide NeMo-RL's timer, written for stepprof's tests, with its names. It measures nothing."""

from contextlib import contextmanager


class Timer:
    """Stands for NeMo-RL's timer."""

    def __init__(self, context=None):
        self._start_times = set()

    def start(self, label, should_log=True):
        if label in self._start_times:
            raise ValueError(f"Timer '{label}' is already running")
        self._start_times.add(label)

    def stop(self, label, should_log=True):
        self._start_times.remove(label)
        return 0.0

    @contextmanager
    def time(self, label, should_log=True):
        self.start(label, should_log)
        try:
            yield
        finally:
            self.stop(label, should_log)
