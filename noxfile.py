"""What is checked, as sessions: `nox -l` lists them, `.ci/run` runs them.

`lint` and `tests` run in the environment that nox was started from, the one that `pip install -c constraints.txt -e '.[dev]'` made. The `core` sessions build the
wheel and test what is in it, in clean environments without torch, on every Python that is supported.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = ["lint", "core", "tests", "coverage"]
nox.options.default_venv_backend = "virtualenv"
nox.options.stop_on_first_error = True
nox.needs_version = ">=2024.10.9"

CORE_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
ROOT = Path(__file__).parent


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, types and the arrows between modules."""
    python(session, "ruff", "check", ".")
    python(session, "ruff", "format", "--check", ".")
    python(session, "mypy")
    session.run(str(Path(sys.executable).with_name("lint-imports")), external=True)


@nox.session(python=CORE_PYTHONS)
def core(session: nox.Session) -> None:
    """Test the built wheel without torch."""
    wheel = build_wheel(session)
    session.install("-c", "constraints.txt", f"stepprof[core-tests] @ {wheel.as_uri()}")
    elsewhere = Path(session.create_tmp()).resolve() / "checkout"
    shutil.rmtree(elsewhere, ignore_errors=True)
    # Everything that the tests read, but not the package: what is imported has to come out of the wheel.
    for name in ("tests", "benchmarks", "docs", "examples"):
        shutil.copytree(
            ROOT / name, elsewhere / name, ignore=shutil.ignore_patterns("__pycache__", "results")
        )
    for path in ROOT.iterdir():
        if (
            path.is_file() and path.suffix in (".md", ".cfg", ".toml", ".txt", ".py")
        ) or path.name == "LICENSE":
            shutil.copy(path, elsewhere)
    session.chdir(elsewhere)
    session.env["COVERAGE_FILE"] = str(ROOT / ".coverage")
    session.run(
        "python",
        "-c",
        "import stepprof.examples, stepprof.errors; assert 'site-packages' in stepprof.examples.__file__",
    )
    session.run(
        "python",
        "-m",
        "coverage",
        "run",
        "-m",
        "pytest",
        "-m",
        "not torch and not demo and not ray",
        *session.posargs,
    )


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every test, torch's included, on the checkout."""
    python(session, "coverage", "run", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Combine what all sessions covered, and refuse too little."""
    python(session, "coverage", "combine")
    python(session, "coverage", "report")


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure what stepprof costs, beside the peers that are installed (`pip install -e '.[bench]'`)."""
    session.run(sys.executable, "-m", "benchmarks", *session.posargs, external=True)


@nox.session(python="3.11")
def bench_verl(session: nox.Session) -> None:
    """Measure beside verl, which needs an environment of its own."""
    session.install("-c", "constraints.txt", "-e", ".[torch,bench]")
    session.install("-r", "benchmarks/verl-requirements.txt")
    session.install("--no-deps", "verl==0.9.1")
    session.run("python", "-m", "benchmarks", *session.posargs)


def python(session: nox.Session, *arguments: str) -> None:
    """Run a module with the Python that runs nox."""
    session.run(sys.executable, "-m", *arguments, external=True)


def build_wheel(session: nox.Session) -> Path:
    """Build the wheel, and return its path."""
    folder = Path(session.create_tmp()).resolve() / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("stepprof-*.whl"))
