#!/bin/sh
# Stage 2 of veca-tiny and of its twin: 128 px again, but patches keep their coordinates in training.
#   sh docs/results/2026-11-16_veca-tiny/stage2.sh veca-tiny CORE START
#   sh docs/results/2026-11-16_veca-tiny/stage2.sh veca-tiny-full CORE START --attention full
# from the top of the repository. START is the folder that stage 1 left (build/stage1/NAME/last). Runs
# go to build/stage2.
set -e
name=$1 core=$2 start=$3
shift 3
mkdir -p build/stage2
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/stage2/$name" --resume \
    --start "$start" --seed 1 \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --optimizer.other-rate 1 --optimizer.core-step-rate 1 \
    --images ../shared/data/unlabelled_160 --validation-images 256 \
    --teacher efficientnet-lite2@16+32 \
    --cache-teacher build/kept --cache.crops 4 --cache.channels None \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --batch 32 --steps 1200 --schedule.peak 2e-3 --schedule.warmup-steps 100 \
    --schedule.decay-steps 0 --ema 0.998 --publish-adaptors \
    --validate-every 2000 --save-every 200 --workers 1 "$@"
