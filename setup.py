"""Lists the packages: those below `stepprof/`, and `examples/` as `stepprof.examples`. The rest is in pyproject.toml."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["stepprof", "stepprof.*"]), "stepprof.examples"])
