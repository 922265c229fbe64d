#!/bin/sh
# Train a policy on a synthetic trace, compare it if it is worth something, and let its rule decide on a
# live cluster.
#   examples/train_and_serve.sh            # too short to learn anything
#   examples/train_and_serve.sh quick      # a minute more
set -eu
recipe=${1:-smoke}

rlsched train --synthetic helios --recipe "$recipe" --logdir runs/ours --overwrite --out ours.toml
rlsched trace synth --like helios --jobs 2000 --load 0.9 --gpus 64 --seed 9 -o t.csv.gz --cluster-out c.toml
ours=
[ ! -f ours.toml ] || ours="--policy ours.toml"
echo > m.toml # models of speed and power, all settings by default
rlsched evaluate --trace t.csv.gz --cluster c.toml --models m.toml --policy pack --policy tuned $ours

rlsched up --nodes 2 --gpus 4 --policy tuned &
cluster=$!
trap 'kill "$cluster"; wait "$cluster"' EXIT
until rlsched nodes >/dev/null 2>&1; do sleep 1; done
rlsched submit --gpus 2 --wait -- sh -c 'echo on GPUs "$CUDA_VISIBLE_DEVICES"'
rlsched why 1
