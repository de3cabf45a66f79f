"""Write the state diagram into the pages that show it, from the transitions that the machine is made of.

python docs/make_states.py
"""

from __future__ import annotations

from pathlib import Path

from transitions.extensions import GraphMachine

from stepprof.state_machine import STATES, TRANSITIONS

PAGES = tuple(Path(__file__).with_name(name) for name in ("states.md", "how-it-works.md"))
BEGIN = "<!-- made by docs/make_states.py -->\n"
END = "<!-- end -->\n"


def diagram() -> str:
    """Return the machine as a mermaid diagram."""
    machine = GraphMachine(
        states=list(STATES),
        transitions=list(TRANSITIONS),
        initial="idle",
        auto_transitions=False,
        graph_engine="mermaid",
    )
    source = machine.get_combined_graph().source
    lines = source[source.index("stateDiagram") :].splitlines()
    # without colours and the current state
    drawn = [
        line.rstrip() for line in lines if line.strip() and not line.lstrip().lower().startswith("class")
    ]
    return "\n".join(drawn) + "\n"


def with_diagram(page: str) -> str:
    """Return the page with the current diagram."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}```mermaid\n{diagram()}```\n{END}{after}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_diagram(path.read_text()))
