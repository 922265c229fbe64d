#!/bin/bash
#SBATCH --job-name=line
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00

# One process for each GPU, which Lightning recognises by the variables of srun.
#
#     sbatch examples/distributed/slurm_lightning.sh          under Slurm
#     rlsched submit examples/distributed/slurm_lightning.sh  here, unchanged

srun python examples/distributed/with_lightning.py
