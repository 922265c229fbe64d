#!/bin/sh
# Train a policy on a synthetic trace, compare it with the rule that training started from, and serve it on a live
# cluster.
#   examples/train_and_serve.sh            # too short to learn anything
#   examples/train_and_serve.sh quick      # a minute longer
set -eu
recipe=${1:-smoke}

rm -f ours.toml ours.json # from an earlier run: a policy is written only if it is confirmed to be better
rlsched train --synthetic helios --recipe "$recipe" --logdir runs/ours --overwrite --out ours.toml
ours=ours.toml
if [ ! -f "$ours" ]; then
    ours=runs/ours/last.toml
    echo "not confirmed to be better; serving $ours, the last policy of the training, as a demonstration"
fi
rlsched trace synth --like helios --jobs 2000 --load 0.9 --gpus 64 --seed 9 -o t.csv.gz --cluster-out c.toml
echo > m.toml # models of speed and power, with default settings
rlsched evaluate --trace t.csv.gz --cluster c.toml --models m.toml --policy pack --policy tuned --policy "$ours"

rlsched up --nodes 2 --gpus 4 --policy "$ours" &
cluster=$!
trap 'kill "$cluster"; wait "$cluster"' EXIT
until rlsched nodes >/dev/null 2>&1; do sleep 1; done
rlsched submit --gpus 2 --wait -- sh -c 'echo on GPUs "$CUDA_VISIBLE_DEVICES"'
rlsched logs 1
rlsched why 1
rlsched status || true # health of the broker; exit code 1 if something is degraded
