#!/bin/bash
#SBATCH --job-name=line
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00

# One launcher of Accelerate on each node, which starts a process for each GPU.
#
#     sbatch examples/distributed/slurm_accelerate.sh          under Slurm
#     rlsched submit examples/distributed/slurm_accelerate.sh  here, unchanged

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
export NUM_PROCESSES=$((SLURM_NNODES * SLURM_GPUS_ON_NODE))

srun bash -c 'accelerate launch --multi_gpu --num_machines $SLURM_NNODES --num_processes $NUM_PROCESSES \
    --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT \
    examples/distributed/with_accelerate.py'
