"""The two worker processes of a data loader are slower than the training: the training waits for them."""

import time

import torch
from planted import Job, compute
from torch.utils.data import DataLoader, Dataset

import stepprof

job = Job()


class Samples(Dataset):
    """Samples that take long to read."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.6 if job.faulty else 0.001)
        return torch.ones(8)


stepprof.init(**job.init())
batches = iter(DataLoader(Samples(), num_workers=2, prefetch_factor=1))
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        for _ in range(4):
            with stepprof.region("take"), job.plant():
                next(batches)
            with stepprof.region("update"):
                compute(0.1)
stepprof.shutdown()
job.write("data", process="rank 0", region="take", why="waited")
