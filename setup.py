"""Lists the packages: those below `stepprof/`, and `examples/` as `stepprof.examples`. The rest is in pyproject.toml."""

from setuptools import find_packages, setup

WITHOUT_CODE = [
    "stepprof.analysis.report.assets"
]  # a package all the same to setuptools, which warns if it is not listed

setup(
    packages=[*find_packages(include=["stepprof", "stepprof.*"]), *WITHOUT_CODE, "stepprof.examples"],
    py_modules=["stepprof_autoload", "stepprof_verl"],
)
