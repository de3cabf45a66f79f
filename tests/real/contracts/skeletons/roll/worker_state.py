"""Provide a skeleton of the state of ROLL's pipeline, written for the tests."""

from dataclasses import dataclass


@dataclass
class WorkerState:
    """The state that a checkpoint keeps."""

    step: int = -1
