#!/usr/bin/env bash
# Training as users train, in one command: steps of one device (GPU), compiled random plans on gloo
# and on NCCL, 300 steps of a GPT on real text with a kill and a resumption.
#
#     benchmarks/user_campaign.sh [SECONDS]      # PYTHON=python3; 16 cores
#
# All rows are kept (one_device.jsonl, random_plans.jsonl, text_training.jsonl); given again it goes
# on where it was interrupted. What has no GPU leaves out what needs one.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} end=$((SECONDS + ${1:-540}))
export PYTHONPATH=src:tests:${PYTHONPATH:-} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
log=$(mktemp -d)

stage() { # a name, a limit in seconds, then a command
  local name=$1 limit=$2; shift 2
  limit=$((limit < end - SECONDS ? limit : end - SECONDS))
  [ $limit -gt 0 ] || return 1
  timeout --kill-after=10 "$limit" "$@" >"$log/$name" 2>&1
  echo "== $name ended with $? after at most $limit s"
}

on_gpu() { # one model after the other; the largest last
  for model in zoo:resnet50@64@float32 "zoo:llama3-8b?layers=4@1@bfloat16" zoo:bert-large@16@bfloat16 \
    zoo:inception-v3@64@float32 zoo:gpt2-xl@2@bfloat16; do
    stage "one_device-${model//[^a-z0-9]/-}" 240 env OMP_NUM_THREADS=4 "$python" benchmarks/one_device.py "$model"
  done
}

# Losses of the text alone take one core, then four ranks and two.
[ -s benchmarks/text_training.jsonl ] ||
  stage text 530 env CUDA_VISIBLE_DEVICES= "$python" benchmarks/text_training.py 300 &
for seed in 31 32 33; do # of 100 plans each
  stage "random-$seed" 530 env CUDA_VISIBLE_DEVICES= "$python" benchmarks/random_plans.py 100 $seed float64 --compile &
done
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  on_gpu
  stage random-nccl 300 "$python" benchmarks/random_plans.py 100 34 float64 --compile --nccl
fi
wait
tail -n 4 "$log"/*
