#!/bin/bash
#SBATCH --job-name=line
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00

# One process for each GPU, started by srun.
#
#     sbatch examples/distributed/slurm_srun.sh          under Slurm
#     rlsched submit examples/distributed/slurm_srun.sh  here, unchanged

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$SLURM_NTASKS

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python examples/distributed/with_torch.py'
