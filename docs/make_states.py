"""Write the state diagrams into the pages that show them, from the transitions that the machines are made of.

python docs/make_states.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transitions.extensions import GraphMachine

from stepprof.remote.core.engine_capture import CAPTURE_STATES, CAPTURE_TRANSITIONS
from stepprof.state_machine import STATES, TRANSITIONS

PAGES = tuple(Path(__file__).with_name(name) for name in ("states.md", "how-it-works.md"))
MACHINES = {
    "<!-- made by docs/make_states.py -->\n": (STATES, TRANSITIONS),
    "<!-- made by docs/make_states.py: the capture of an engine -->\n": (CAPTURE_STATES, CAPTURE_TRANSITIONS),
}
"""What stands before a diagram, and its machine."""
END = "<!-- end -->\n"


def diagram(states: Sequence[str], transitions: Sequence[dict[str, Any]]) -> str:
    """Return a machine as a mermaid diagram; it begins in the first state."""
    machine = GraphMachine(
        states=list(states),
        transitions=list(transitions),
        initial=states[0],
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
    """Return the page with the current diagrams."""
    for begin, machine in MACHINES.items():
        if begin in page:
            before, _, rest = page.partition(begin)
            _, _, after = rest.partition(END)
            page = f"{before}{begin}```mermaid\n{diagram(*machine)}```\n{END}{after}"
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_diagram(path.read_text()))
