"""A report and a comparison are rendered as Markdown, and a Markdown parser reads them again."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from reports import make_report

from stepprof.analysis.report.compare import compare
from stepprof.analysis.report.markdown import render
from stepprof.analysis.report.schema import Finding, Gate, Part, Problem, RegionRow, Report
from stepprof.analysis.report.wording import path_text, quoted

HOSTILE = "_a_ *b* `c` [d](http://e) <script>f</script> | g @here & ~h~ $i$ \\ j http://k.l www.m.n"


def parsed(text):
    return MarkdownIt("commonmark").enable("table").parse(text)


def texts(text):
    """Return the text that a reader sees, block by block."""
    return ["".join(child.content for child in token.children) for token in parsed(text) if token.children]


@pytest.fixture
def report():
    return make_report(ranks=2)


@pytest.mark.parametrize("url", ["https://evil.example/a", "WWW.evil.example", "see www.evil.example"])
def test_bare_addresses(report, url):
    """A bare address in a name stays text: GitHub makes links of what looks like one."""
    text = render(replace(report, run_id=url))
    assert not any(each in text.lower() for each in ("://evil", "www.evil"))
    assert any(url in shown for shown in texts(text))


def test_a_report(report):
    """The Markdown has the findings with their reasons and advice, and tables of roles and regions."""
    first = Finding("rank 1 is slow", "straggler", 1.8, why="7,000 tokens, 5,000 elsewhere", advice="balance")
    shown = texts(render(replace(report, findings=[first, *report.findings])))
    assert shown[0] == f"grpo-7b-math, step 12: {report.seconds:.1f} s"
    assert shown[1:4] == ["1.80 s rank 1 is slow", "why: 7,000 tokens, 5,000 elsewhere", "try: balance"]
    sentences = [finding.text.replace("`", "") for finding in report.findings]
    assert all(any(sentence in line for line in shown) for sentence in sentences)
    at = shown.index("part of the step")
    heads = ["part of the step", "on the critical path", "in any process", report.parts[0].name]
    assert shown[at : at + 4] == heads
    assert "region" in shown
    at = shown.index("could take longer")
    assert shown[at + 1 : at + 4] == ["actor", "actor rank 2", "1.25 s"]
    assert shown.count("could take longer") == 1


def test_names_of_regions_are_code(report):
    """The names between the backticks of a sentence are shown as code, whatever they contain."""
    name = "a_b|*c* <d> @e `f` \n[g](h)"
    findings = [Finding(f"rank 1 waited in {quoted(name)}", "sleep", why="in `load_*` alone", advice="not `")]
    tokens = [token for token in parsed(render(replace(report, findings=findings))) if token.children]
    code = [child.content for token in tokens for child in token.children if child.type == "code_inline"]
    assert code == ["a_b|*c* <d> @e 'f' ?[g](h)", "load_*"]
    assert "try: not `" in texts(render(replace(report, findings=findings)))


def test_names_cannot_format_it(report):
    """A name can add no link, tag or mention of a user at any place. In a sentence, what stands between backticks is code."""
    bad = replace(
        report,
        run_id=HOSTILE,
        findings=[Finding(HOSTILE, "step", 1.0, why=HOSTILE)],
        parts=[Part(HOSTILE, HOSTILE, None, 1.0, 0.5, 1.0, 0.5)],
        tree=[RegionRow(None, "region", HOSTILE, 1, 1.0, 1.0, 0.5, 1.0, 1.0, HOSTILE, 1)],
        problems=[Problem(HOSTILE, HOSTILE)],
    )
    text = render(bad)
    assert "@" not in text
    shown = texts(text)
    assert f"{HOSTILE}, step 12: {report.seconds:.1f} s" in shown
    assert shown.count(HOSTILE) == 1
    assert path_text([HOSTILE]) in shown
    assert f"why: {HOSTILE}".replace("`", "") in shown
    assert f"1.00 s {HOSTILE.replace('`', '')}" in shown
    kinds = {child.type for token in parsed(text) if token.children for child in token.children}
    assert kinds <= {"text", "text_special", "strong_open", "strong_close", "code_inline"}


def test_a_line_break_in_a_name(report):
    assert "\n# x" not in render(replace(report, run_id="a\n# x"))


def test_only_the_first_five_problems_are_listed(report):
    """The first five problems are listed, and a line counts the others."""
    shown = texts(render(replace(report, problems=[Problem(None, f"p{number}") for number in range(9)])))
    assert shown[-2:] == ["p4", "and 4 more, in the JSON"]


def test_a_comparison(report):
    slower = replace(make_report(ranks=2, seed=8), seconds=report.seconds * 2)
    compared = replace(
        compare(report, slower), gate=Gate("regression", 0.05, "regression above 5%: much longer")
    )
    shown = texts(render(compared))
    assert shown[0] == f"{compared.a} → {compared.b}"
    assert shown[1] == "regression above 5%: much longer"
    at = shown.index("A")
    assert shown[at : at + 4] == ["A", "B", "change", "noise"]
    assert "+100.0%" in shown


def test_an_empty_report():
    assert render(Report("r", None, 0, 0.0, "", None)) == "### r: 0 s\n"
