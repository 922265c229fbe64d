#!/bin/sh
# Train a policy on a synthetic trace, compare it, and let it decide on a live cluster.
#   examples/train_and_serve.sh            # a minute: too short to learn much
#   examples/train_and_serve.sh 1000000    # so many decisions
set -eu
decisions=${1:-20000}
recipe=default
[ "$decisions" -ge 100000 ] || recipe=quick

rlsched train --synthetic helios --timesteps "$decisions" --recipe "$recipe" --logdir runs/ours --out ours.zip
rlsched trace synth --like helios --jobs 2000 --load 0.9 --gpus 64 --seed 9 -o t.csv.gz --cluster-out c.toml
rlsched evaluate --trace t.csv.gz --cluster c.toml --policy qssf-backfill --policy ppo --policy ppo:ours.zip

rlsched up --nodes 2 --gpus 4 --policy ppo:ours.zip &
cluster=$!
trap 'kill "$cluster"; wait "$cluster"' EXIT
until rlsched nodes >/dev/null 2>&1; do sleep 1; done
rlsched submit --gpus 2 --wait -- sh -c 'echo on GPUs "$CUDA_VISIBLE_DEVICES"'
rlsched why 1
