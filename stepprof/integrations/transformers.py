"""The adapter of Hugging Face Transformers' `Trainer`, and so of every trainer that derives from it.

The window of a step begins with the fetch of its data and ends where the next one begins, so that
logging, saving and evaluation after it belong to it. Its number is ``state.global_step + 1``: the
framework counts finished steps.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

from stepprof.integrations.activation import attach, note_model
from stepprof.integrations.hooks import around, hooked, timed
from stepprof.integrations.training_loop import TrainingLoop, close_timer, end_evaluations, open_timer

TRAINER = "transformers.trainer:Trainer"
_loops: weakref.WeakKeyDictionary[Any, TrainingLoop] = weakref.WeakKeyDictionary()


def loop_of(trainer: Any) -> TrainingLoop:
    """Return the training loop of a trainer."""
    loop = _loops.get(trainer)
    if loop is None:
        loop = _loops[trainer] = TrainingLoop("transformers", always=_is_asked_for(trainer))
    return loop


def _is_asked_for(trainer: Any) -> bool:
    """Return whether the job itself has given the trainer our callback."""
    return any(isinstance(each, _TrainerEvents) for each in trainer.callback_handler.callbacks)


class _TrainerEvents:
    """What stepprof does at the events of a trainer. Without patches, the data of a step is fetched before its window."""

    def __init__(self) -> None:
        self._loop = TrainingLoop("transformers", always=True)
        self._patched = attach(ADAPTERS[0])

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the window of the step."""
        if not self._patched:
            self._loop.begin(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the window of the step."""
        self._loop.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close every open window."""
        self._loop.end()


@cache
def _callback_class() -> Any:
    from transformers import TrainerCallback

    return type(
        "StepprofCallback",
        (_TrainerEvents, TrainerCallback),
        {
            "__doc__": "Record the steps of a `Trainer` that gets it as one of its callbacks.",
            "__module__": __name__,
        },
    )


def __getattr__(name: str) -> Any:
    if name == "StepprofCallback":
        return _callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- functions around the methods of a trainer


def _train_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> TrainingLoop:
    loop = loop_of(trainer)
    loop.claim()
    note_model("transformers", getattr(getattr(trainer, "model", None), "name_or_path", None))
    return loop


def _train_ends(loop: TrainingLoop | None, error: BaseException | None) -> None:
    if loop is not None:
        loop.end(error)
        loop.release()


def _fetch_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    loop_of(trainer).begin(trainer.state.global_step + 1)
    return open_timer("fetch_data")


def _evaluation_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    loop = loop_of(trainer)
    return [(loop, loop.evaluation(trainer.state.global_step))]


ADAPTERS = (
    hooked(
        "transformers",
        TRAINER,
        [
            around(f"{TRAINER}.train", _train_begins, _train_ends),
            around(
                f"{TRAINER}.get_batch_samples",
                _fetch_begins,
                close_timer,
                needs=("epoch_iterator", "num_batches"),
            ),
            around(f"{TRAINER}.evaluate", _evaluation_begins, end_evaluations),
            timed(f"{TRAINER}.compute_loss", "compute_loss", needs=("model", "inputs")),
            timed(f"{TRAINER}._save_checkpoint", "save_checkpoint", needs=("model", "trial")),
            timed(f"{TRAINER}.log", "log", needs=("logs",)),
        ],
        {
            "transformers.trainer_callback:TrainerCallback.on_step_begin": ("args", "state", "control"),
            "transformers.trainer_callback:TrainerState": (),
        },
        distributions=("transformers",),
        tested=">=4.56.2,<5.24",
    ),
)
