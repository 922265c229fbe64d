"""Training on several nodes with DistributedDataParallel: a line is fitted, on GPUs if there are any.

    rlsched run --gpus 4 --launch torchrun examples/distributed/with_torch.py
    rlsched run --gpus 4 --launch per-gpu -- python examples/distributed/with_torch.py

Both launchers start one process per GPU and set all variables that `init_process_group` reads.
"""

import os

import torch
import torch.distributed.nn  # before `init_process_group`: if DDP imports it later, it keeps the group
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

STEPS = 50


def main() -> None:
    """Train, and print the number of processes and the loss, from the first process only."""
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    losses = train(rank)
    if rank == 0:
        print(f"{count} processes, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    # Joins the threads of the group, which nothing else refers to: a thread that outlived Python would abort.
    distributed.destroy_process_group()


def train(rank: int) -> list[float]:
    """Fit the line in this process. The loss before each step."""
    has_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")
    torch.manual_seed(rank)  # each process draws its own part of the data
    x = torch.rand(64, 1, device=device)
    y = 3.0 * x + 1.0
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))  # starts as the first process has it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # averages the gradients of all processes
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
