"""The documentation can be used as written: configurations are valid, programs
compile, links and commands exist.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import typing
from pathlib import Path

import msgspec
import pytest
from security_promises import SHOWN_BY

import stepprof
from stepprof.analysis.report.schema import Bar, Comparison, RegionTime, Report
from stepprof.cli import engine_table, memory_tables
from stepprof.cli import window_table as windows
from stepprof.cli.commands import ls, show
from stepprof.cli.main import COMMANDS
from stepprof.config.config import Config, load
from stepprof.run.manifest import read_step

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DIALECT = re.compile(
    r"\b(is|are|was|were) told\b|\btold of\b|\bnobody|\bwhoever|\bsomebody|what came of|stands? in the way|hand-over|lets go"
    r"|last word|\bowed?\b|\bbeside\b|given up|as far as it goes|(comes|goes) (in|out)\b"
)
"""Phrases of the project's old dialect, which pages must not contain."""
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def blocks(language):
    """Return each code block of a language, with the page and the line in which it begins."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCED.finditer(text):
            if match[1] == language and "[project." not in match[2]:  # the file of another package
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match[2], id=f"{page.name}:{line}"))
    return found


def anchors(page):
    """Return the anchors of the headings of a page."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("text", blocks("toml"))
def test_configurations_are_valid(text, tmp_path):
    (tmp_path / "stepprof.toml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "stepprof.toml", {}) != Config()


@pytest.mark.parametrize("text", blocks("python"))
def test_programs_compile(text):
    assert ast.parse(text).body


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Each relative link leads to a file that exists and, if it has an anchor, to a heading of that page."""
    dead = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "reference.md"], ids=lambda page: page.name
)
def test_pages_are_in_plain_english(page):
    """Outside of code, no page contains a phrase of the word list."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
    assert [match[0] for match in DIALECT.finditer(text)] == []


def test_commands_that_are_named_exist():
    """Each command that a page names exists, and the README names every command."""
    named = {
        word for page in PAGES for word in re.findall(r"`stepprof ([a-z]+)", page.read_text(encoding="utf-8"))
    }
    assert named - set(COMMANDS) == set()
    assert set(re.findall(r"\bstepprof ([a-z]+)\b", README)) >= set(COMMANDS)


COLUMNS = {
    "Runs": ls.RUN_COLUMNS,
    "Steps": ls.STEP_COLUMNS,
    "Windows": windows.WINDOW_COLUMNS,
    "Engines": engine_table.ENGINE_COLUMNS,
    "Files": windows.FILE_COLUMNS,
    "Files in groups": windows.FILE_GROUP_COLUMNS,
    "Memory peaks": memory_tables.PEAK_COLUMNS,
    "Memory at the peak": memory_tables.PLACE_COLUMNS,
    "Clocks": engine_table.CLOCK_COLUMNS,
    "Regions": show.REGION_COLUMNS,
    "Regions of many ranks": show.RANK_COLUMNS,
}


def columns_of(heading):
    """Return the first cells of the table below a heading of docs/concepts.md."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    section = text.split(f"### {heading}\n")[1].split("\n#")[0]
    return tuple(re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE))[1:]


@pytest.mark.parametrize("heading", COLUMNS)
def test_every_printed_column_is_defined(heading):
    """docs/concepts.md defines the columns of each table of `ls` and `show`, in their order."""
    assert columns_of(heading) == COLUMNS[heading]


def test_every_folder_of_the_package_is_shown():
    """The tree in docs/how-it-works.md has the folders of the package, and those inside them."""
    (tree,) = re.findall(
        r"^stepprof/\n(.*?)```", (ROOT / "docs" / "how-it-works.md").read_text(), re.M | re.S
    )
    shown = {
        f"{line.split('/')[0].strip()}/{inner}".strip("/")
        for line in tree.splitlines()
        for inner in ["", *re.findall(r"\b(\w+)/", line.split("/", 1)[1])]
    }
    package = Path(stepprof.__file__).parent
    folders = {each.parent.relative_to(package).as_posix() for each in package.glob("*/**/__init__.py")}
    assert shown == {each for each in folders if each.count("/") < 2 and each != "examples"}


def test_the_columns_of_tables_are_current():
    """docs/data.md equals the code. `python docs/make_data.py` updates it."""
    made = runpy.run_path(str(ROOT / "docs" / "make_data.py"))
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert page == made["updated"](page)
    assert page.count("### `") == 5


class TestAgentsPage:
    """docs/agents.md compared with the schema of report.json."""

    PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")

    def test_is_current(self):
        """The tables of the page equal the docstrings. `python docs/make_agents.py` updates them."""
        made = runpy.run_path(str(ROOT / "docs" / "make_agents.py"))
        assert made["updated"](self.PAGE) == self.PAGE

    def test_lists_the_fields_of_the_schema(self):
        """The page lists each struct in the JSON of a report or comparison, with its fields
        in order and their meanings.
        """
        listed = {
            name: re.findall(r"^\| `(\w+)` \|(?:[^|]*\|){2} \S", table, re.MULTILINE)
            for name, table in re.findall(r"^### `(\w+)`\n(.*?)(?=^#|<!-- end)", self.PAGE, re.M | re.S)
        }
        _, schemas = msgspec.json.schema_components([Report, Comparison])
        bars = {each.__name__: list(each.__struct_fields__) for each in (Bar, RegionTime)}  # arrays in JSON
        assert listed == {name: list(each.get("properties", ())) for name, each in schemas.items()} | bars

    def test_excerpts_have_the_shape_of_a_report(self):
        """Each value in the three excerpts is valid for its field."""
        excerpts = [json.loads(text) for language, text in FENCED.findall(self.PAGE) if language == "json"]
        assert len(excerpts) == 3
        for excerpt in excerpts:
            check_excerpt(excerpt, Report)


def check_excerpt(value, kind):
    """Raise an error unless the value is a valid part of this type in JSON."""
    if isinstance(value, dict) and hasattr(kind, "__struct_fields__"):
        hints = typing.get_type_hints(kind)
        for name, inner in value.items():
            check_excerpt(inner, hints[name])
    elif isinstance(value, list) and typing.get_origin(kind) is list:
        for each in value:
            check_excerpt(each, typing.get_args(kind)[0])
    else:
        msgspec.convert(value, kind)


def test_the_reference_is_current():
    """docs/reference.md equals the docstrings. `python docs/make_reference.py` updates it."""
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == made["page"]()


def test_the_readmes_example_records_the_stated_windows(tmp_path, monkeypatch):
    """The README's loop and configuration, with the null backend, record the two roles of step
    2, and log the stated state.
    """
    (loop,) = [text for _, text in FENCED.findall(README) if "stepprof.init(" in text]
    (configuration,) = [text for language, text in FENCED.findall(README) if language == "toml"]
    (tmp_path / "stepprof.toml").write_text(configuration.replace('backend = "torch"', 'backend = "null"'))
    monkeypatch.chdir(tmp_path)
    logged = []

    class Log:
        def info(self, event, *, profiler):
            logged.append(profiler)

    names = {"steps": 3, "prompts": ["1+1="], "generate": list, "log": Log()}
    exec(compile(loop, "README.md", "exec"), names)
    stepprof.shutdown()
    (run,) = (tmp_path / "stepprof-runs").iterdir()
    windows = read_step(run, 2)["windows"]
    assert sorted((window["role"], window["status"]) for window in windows) == [("actor", "complete"), ("rollout", "complete")]  # fmt: skip
    promised = re.search(r"log\.info\(.*# (.+)$", loop, re.MULTILINE)
    assert promised
    assert logged[0] == promised[1].replace("torch", "null")


class TestSecurity:
    """SECURITY.md and the tests agree."""

    def test_every_promise_has_its_tests(self):
        """Nothing is left of what stepprof does when the sentences that have tests are taken out."""
        section = (
            (ROOT / "SECURITY.md")
            .read_text(encoding="utf-8")
            .partition("## What is not trusted\n")[2]
            .partition("\n## ")[0]
        )
        rows = [line[2:-2].split(" | ") for line in section.splitlines() if line.startswith("| ")]
        rest = " ".join(row[1] for row in rows if len(row) > 1)
        for sentence in SHOWN_BY:
            assert sentence in rest, sentence
            rest = rest.replace(sentence, "")
        rest = rest.replace(": the run gets the next free name (`job.2`), and the log says why.", "")
        assert re.sub(r"[\s:,.]|and", "", rest) == ""

    def test_the_tests_exist(self):
        """Each named module has a test of that name."""
        named = {test.partition("::")[::2] for tests in SHOWN_BY.values() for test in tests}
        texts = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named}
        assert [
            (file, name) for file, name in sorted(named) if f"def {name or 'test_'}" not in texts[file]
        ] == []

    def test_torch_and_transformers_load_no_file(self):
        """No module calls `torch.load` or `from_pretrained`."""
        calls = {
            (path.name, ast.unparse(node.func))
            for path in (ROOT / "stepprof").rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert len(calls) > 1_000
        assert [each for each in calls if re.search(r"\btorch\.load$|\.from_pretrained$", each[1])] == []
