#!/bin/sh
# Train a policy on a synthetic trace, compare it with the rule that it began with, and let it decide on a live
# cluster.
#   examples/train_and_serve.sh            # too short to learn anything
#   examples/train_and_serve.sh quick      # a minute more
set -eu
recipe=${1:-smoke}

rm -f ours.toml ours.json # of an earlier run: a policy is written only if it is confirmed to be better
rlsched train --synthetic helios --recipe "$recipe" --logdir runs/ours --overwrite --out ours.toml
ours=ours.toml
if [ ! -f "$ours" ]; then
    ours=runs/ours/last.toml
    echo "not confirmed to be better: $ours, where the training ended, is served to show how"
fi
rlsched trace synth --like helios --jobs 2000 --load 0.9 --gpus 64 --seed 9 -o t.csv.gz --cluster-out c.toml
echo > m.toml # models of speed and power, all settings by default
rlsched evaluate --trace t.csv.gz --cluster c.toml --models m.toml --policy pack --policy tuned --policy "$ours"

rlsched up --nodes 2 --gpus 4 --policy "$ours" &
cluster=$!
trap 'kill "$cluster"; wait "$cluster"' EXIT
until rlsched nodes >/dev/null 2>&1; do sleep 1; done
rlsched submit --gpus 2 --wait -- sh -c 'echo on GPUs "$CUDA_VISIBLE_DEVICES"'
rlsched logs 1
rlsched why 1
rlsched status || true # who decides; exit code 1 where something is not all right
