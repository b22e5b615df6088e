#!/usr/bin/env bash
# All that needs a GPU, in one command on a machine with one: the GPU suite, whole (`make gpu-test`,
# its log kept as gpu_test.log); then the testbed with NCCL: what ranks that share the GPU take by
# themselves, P² with Ring and with Tree, DDP with and without the chosen program.
#
#     benchmarks/gpu_session.sh [FOLDER] [SECONDS OF EACH CAMPAIGN] [SECONDS OF ALL]
#
# As root, with PyTorch's python3 first on the PATH; packages that it lacks (msgspec, pyroute2,
# pytest, pytest-xdist, hypothesis) are found on PYTHONPATH. What passed by a log of the suite in the
# folder is not run again; SUITE=0 leaves it out. Campaigns go on where results in the folder, or
# beside this script, end. COMPARE=1: also what ranks take without MPS.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-${OUT:-/tmp/gpu_session}} seconds=${2:-120} all=${3:-1800}
mkdir -p "$out"
export PYTHONPATH=src:benchmarks:.:${PYTHONPATH:-} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps_pipe CUDA_MPS_LOG_DIRECTORY=/tmp/mps_log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
awake=()

stage() { # a limit in seconds, then a command: what it prints, how it ended and how long it took
  local limit=$1 begun=$SECONDS; shift
  limit=$((limit < all - SECONDS ? limit : all - SECONDS))
  [ $limit -gt 0 ] || return 1
  echo "== $* ($(date +%T), load $(cut -d' ' -f1 /proc/loadavg), $(head -1 /proc/stat))"
  timeout --kill-after=10 "$limit" "$@" 2>&1
  local code=$?
  echo "== ended with $code after $((SECONDS - begun)) s"
  return $code
}

suite() { # Both halves, whatever becomes of the first; MPS is started by the suite.
  local log=$out/gpu_test.log
  [ "${SUITE:-1}" != 0 ] || return
  touch "$log"
  [ -n "$(left "$log")" ] && stage "$all" env -u CUDA_MPS_PIPE_DIRECTORY -u CUDA_MPS_LOG_DIRECTORY \
    PYTEST_ADDOPTS="$(passed "$log" | sort -u | sed 's/^/--deselect=/' | tr '\n' ' ')" \
    make -i gpu-test PYTHON=python3 | tee -a "$log"
  left "$log" >"$out/gpu_test_left"
  echo "tests of the GPU suite that have not passed: $(wc -l <"$out/gpu_test_left")"
}

left() { # Tests that have not passed.
  comm -23 <(python3 -m pytest tests/gpu -m gpu --collect-only -q -p no:benchmark | grep :: | sort) \
    <(passed "$1" | sort -u)
}

passed() { # Names of tests, as pytest says them of one process and of several workers.
  sed -n -e 's/^\[gw[0-9]*\].* PASSED \(tests[^ ]*\).*/\1/p' -e 's/^\(tests[^ ]*\) PASSED.*/\1/p' "$1"
}

latency() { stage 60 python3 benchmarks/nccl_latency.py "$@"; }

wake() { # A process on every core that runs where nothing else wants to, so that no core sleeps.
  for _ in $(seq "$(nproc)"); do
    python3 -S -c 'import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True: pass' & awake+=($!)
  done
}

sleep_again() { [ ${#awake[@]} = 0 ] || kill "${awake[@]}"; awake=(); }

{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  suite
  stage 60 python3 -c 'import testbed, torch
print(testbed.unavailable() or "a testbed can be brought up", torch.__version__, torch.cuda.nccl.version())' || exit 1
  [ "${COMPARE:-0}" = 0 ] || latency 2 4 8
  # Ranks that share a GPU take turns on it unless the multi-process service (MPS) joins them.
  if command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d; then
    echo "MPS started"
  else
    echo "without MPS"
  fi
  asleep=$(latency 2); echo "$asleep"
  wake
  awoken=$(latency 2 8); echo "$awoken"
  milliseconds() { sed -n 's/^2 ranks: \([0-9.]*\) ms.*/\1/p' <<<"$1"; }
  if [ -z "$(milliseconds "$awoken")" ]; then
    echo "ranks did not work with MPS"
    tail -n 5 "$CUDA_MPS_LOG_DIRECTORY"/*.log
    echo quit | timeout 20 nvidia-cuda-mps-control
  elif awk "BEGIN { exit !($(milliseconds "$asleep") + 0 < $(milliseconds "$awoken") + 0) }"; then
    sleep_again
    echo "cores may sleep: it is faster"
  fi
  for algorithm in ring tree; do
    results=p2_testbed_nccl_$algorithm.jsonl
    [ -e "$out/$results" ] || cp "benchmarks/$results" "$out/" 2>/dev/null
    stage $((seconds + 30)) python3 benchmarks/p2_testbed.py --backend nccl --algorithm $algorithm \
      --budget "${seconds}s" --results "$out/$results"
  done
  stage 150 python3 benchmarks/ddp_hook.py --backend nccl --rounds 2
  sleep_again
  echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
} 2>&1 | tee "$out/gpu_session.log"
