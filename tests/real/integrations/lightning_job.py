"""Run a job of Lightning that does not mention stepprof: eight steps of two batches, each a second of work or more.

With the argument `slow_data`, each batch is loaded in 0.4 s more. With `slow_callback`, a callback of the job sleeps in
step 5.
"""

import sys
import time

import lightning
import torch


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> torch.Tensor:
        if "slow_data" in sys.argv:
            time.sleep(0.4)
        return torch.ones(2500, 1024)


class Pause(lightning.Callback):
    def on_before_optimizer_step(self, trainer: lightning.Trainer, *_: object) -> None:
        if "slow_callback" in sys.argv and trainer.global_step == 4:
            time.sleep(1)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        callbacks=[Pause()],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=None))


if __name__ == "__main__":
    main()
