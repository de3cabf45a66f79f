"""Test the notebook of examples/: its cells run one after another and give the right answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[3] / "examples" / "explore.ipynb"
PROGRAM = """
import json, sys
place = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), place)
answers = {name: json.loads(place[name].to_json(orient="records")) for name in ("longest", "operators", "findings")}
answers["work"] = json.loads(place["work"].reset_index().to_json(orient="records"))
print("answers:" + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    found: list[dict[str, Any]] = content["cells"]
    return found


def test_the_notebook_has_no_outputs(cells: list[dict[str, Any]]) -> None:
    """The notebook contains no outputs, and every cell has its own id."""
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert NOTEBOOK.stat().st_size < 20_000


def test_the_notebook_answers_are_right() -> None:
    """Step 5 has four times the samples, so it is the longest. Its most expensive operators are
    matrix products.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(NOTEBOOK)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("answers:"))
    answers = json.loads(line.removeprefix("answers:"))
    assert [row["step"] for row in answers["longest"]] == [5, 5, 5]
    assert {row["region"] for row in answers["longest"]} == {"prepare", "forward", "backward"}
    assert [(row["step"], row["samples"]) for row in answers["work"]] == [
        (step, 16384 if step == 5 else 4096) for step in range(1, 8)
    ]
    assert all(row["samples_per_second"] > 0 for row in answers["work"])
    assert {(row["region"], row["operator"]) for row in answers["operators"]} == {
        ("forward", "aten::addmm"),
        ("backward", "aten::mm"),
    }
    assert answers["findings"]
    assert all(row["text"] for row in answers["findings"])
