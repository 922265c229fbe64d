#!/bin/bash
#SBATCH --job-name=line
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00

# One torchrun on each node, which starts a process for each GPU.
#
#     sbatch examples/distributed/slurm_torchrun.sh          under Slurm
#     rlsched submit examples/distributed/slurm_torchrun.sh  here, unchanged

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address)

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --rdzv-id $RANDOM --rdzv-backend c10d --rdzv-endpoint "$head_node_ip:$((10000 + SLURM_JOB_ID % 10000))" \
    examples/distributed/with_torch.py
