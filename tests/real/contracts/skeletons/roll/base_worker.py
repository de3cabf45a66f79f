"""Provide a skeleton of ROLL's workers, written for the tests."""

from codetiming import Timer


class ActorWorker:
    """A worker that computes nothing."""

    def run(self, method):
        with Timer(name=method, logger=None):
            return method
