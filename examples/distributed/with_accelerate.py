"""Training on several nodes with Accelerate: a line is fitted, on GPUs if there are any.

    rlsched run --gpus 4 --launch torchrun examples/distributed/with_accelerate.py
    rlsched run --gpus 4 --launch per-gpu -- python examples/distributed/with_accelerate.py

`accelerate launch` starts it too, once on each node: see docs/how-to/distributed.md.
"""

import torch
from accelerate import Accelerator

STEPS = 50


def main() -> None:
    """Train, and print the number of processes and the loss, from the first process only."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(accelerator.process_index)  # each process draws its own part of the data
    x = torch.rand(64, 1, device=accelerator.device)
    y = 3.0 * x + 1.0
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)  # averages the gradients of all processes
        optimizer.step()
        losses.append(loss.item())
    if accelerator.is_main_process:
        print(f"{accelerator.num_processes} processes, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
