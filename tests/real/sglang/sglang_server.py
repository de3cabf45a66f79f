"""Run a real SGLang server on this host, in its own processes."""

from __future__ import annotations

from pathlib import Path

import sglang_tiny
from engineserver import EngineServer

KEY = "user-key"
ADMIN_KEY = "admin-key"


class Server(EngineServer):
    """``python -m sglang.launch_server``, with keys.

    Args:
        model: the model's path.
        log: the file for its output.
    """

    def __init__(self, model: str, log: Path) -> None:
        switches = ["--api-key", KEY, "--admin-api-key", ADMIN_KEY, "--skip-server-warmup"]
        for name, value in {**sglang_tiny.ENGINE, "model_path": model, "sleep_on_idle": True}.items():
            switch = "--" + name.replace("_", "-")
            switches += [switch] if value is True else [switch, str(value)]
        super().__init__("sglang.launch_server", switches, log, key=KEY, env=sglang_tiny.variables())

    def generate(self, tokens: int) -> None:
        """Generate this number of tokens."""
        asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        self.ask("POST", "/generate", {"text": "abc", "sampling_params": asked})

    def scheduler(self) -> int:
        """Return the id of the process that runs the model."""
        return self.find(b"scheduler")
