#!/usr/bin/env bash
# What docs/questions.md, docs/gallery and confirm_runners_up.jsonl lack, on a machine with 16 cores:
# bash benchmarks/questions_campaign.sh [SECONDS]
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD/src OMP_NUM_THREADS=1
PYTHON=${PYTHON:-python3}
END=${1:-500}
COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
$PYTHON -c "from meshwright.search.joint.jit_warm_up import warm_up; warm_up()"
timeout "$END" $PYTHON benchmarks/record_pages.py -j 10 -t "$((END - 90))" --commit "$COMMIT" docs/questions.md gallery &
$PYTHON benchmarks/confirm_runners_up.py jobs | timeout "$END" xargs -d '\n' -P 5 -I{} \
  $PYTHON benchmarks/confirm_runners_up.py 8 {} >/dev/null
wait
$PYTHON benchmarks/confirm_runners_up.py table
