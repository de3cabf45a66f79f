"""A skeleton of ROLL's configuration, written for the tests."""

from dataclasses import dataclass


@dataclass
class BaseConfig:
    """How long a pipeline runs, and whether ROLL's own profiler records."""

    max_steps: int = 4
    profiler_timeline: bool = False
