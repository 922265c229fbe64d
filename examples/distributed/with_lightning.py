"""Training on several nodes with Lightning: a line is fitted, on GPUs if there are any.

    rlsched run --gpus 4 --launch torchrun examples/distributed/with_lightning.py
    rlsched run --gpus 4 --launch per-gpu -- python examples/distributed/with_lightning.py

Lightning finds the processes of both launchers. `devices` and `num_nodes` have to agree with the gang; every
node has these numbers in its environment. Lightning requires the same number of GPUs on each node, as a gang
of whole nodes has.
"""

import os

import lightning
import torch

STEPS = 50


class Line(lightning.LightningModule):
    """A linear model of one variable."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main() -> None:
    """Train, and print the number of processes and the loss, from the first process only."""
    lightning.seed_everything(0)
    x = torch.rand(64, 1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 3.0 * x + 1.0), batch_size=16)
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ["RLSCHED_GPUS_ON_NODE"]),
        num_nodes=int(os.environ["RLSCHED_NUM_NODES"]),
        strategy="ddp",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    line = Line()
    trainer.fit(line, data)
    if trainer.is_global_zero:
        print(f"{trainer.world_size} processes, loss {line.losses[0]:.4f} to {line.losses[-1]:.4f}")
    torch.distributed.destroy_process_group()  # at exit, Lightning does this only for GPUs


if __name__ == "__main__":
    main()
