#!/bin/sh
# One stage of one model of the run: $STEPS steps of 32 pictures from where the stage before ended.
#   sh docs/results/2026-11-18_close-the-gap/run.sh NAME STAGE CORE START [flags of veca distill ...]
# from the top of the repository (at the commit that README.md names), with the environment's bin on
# the PATH: one thread on one core. START is a folder with model.safetensors, config.json and
# adaptors.safetensors: the snapshot that the stage before published. Run folders go to $RUNS, the
# teacher's outputs to $KEPT; --resume continues a stage that was stopped on the same machine.
set -e
name=$1 stage=$2 core=$3 start=$4
shift 4
export OMP_NUM_THREADS=1
case $name in
    veca-tiny-full) kind="--attention full --backbone.local-kernel 0" ;;
    veca-tiny-full-local) kind="--attention full" ;;
    veca-tiny-paper) kind="--backbone.local-kernel 0" ;;
    veca-tiny) kind="--backbone.core-motion attention" ;;
    *) echo "no such model: $name" >&2; exit 2 ;;
esac
# 128 px at a constant rate; the last stage 192 to 256 px, where the rate decays.
if test "$stage" -lt 6; then
    how="--resolution 128 --teacher efficientnet-lite2@16+32 --schedule.peak 2e-3
        --schedule.decay-steps 0 --cache.crops 2"
else
    how="--teacher efficientnet-lite2@16+32@16 --schedule.peak 1.5e-3
        --schedule.decay-steps $((STEPS * 6 / 10)) --cache.crops 1"
fi
# shellcheck disable=SC2086 - words
exec taskset -c "$core" ${VECA:-veca} distill tiny --out "${RUNS:-build/runs}/$name-$stage" --resume \
    --start "$start" $kind $how --seed "$stage" \
    --images "${IMAGES:-../shared/data/unlabelled_*/*.tar}" --validation-images 256 \
    --teacher-margin 64 --teacher-surroundings contextual \
    --cache-teacher "${KEPT:-build/kept}" --cache.seed "${VIEWS:-20}" \
    --batch 32 --steps "$STEPS" --schedule.warmup-steps 100 --ema 0.998 \
    --validate-every "$STEPS" --save-every 200 --workers 1 "$@"
