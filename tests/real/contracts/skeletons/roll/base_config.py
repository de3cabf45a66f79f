"""Provide a skeleton of ROLL's configuration, written for the tests."""

from dataclasses import dataclass


@dataclass
class BaseConfig:
    """The number of steps of a pipeline, and whether ROLL's own profiler records."""

    max_steps: int = 4
    profiler_timeline: bool = False
