"""A skeleton of ROLL's state of a pipeline, written for the tests."""

from dataclasses import dataclass


@dataclass
class WorkerState:
    """What a checkpoint keeps."""

    step: int = -1
