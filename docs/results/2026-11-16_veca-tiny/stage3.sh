#!/bin/sh
# Stage 3 of veca-tiny and of its twin: 128 px as stage 2, with other views of the same photos.
#   sh docs/results/2026-11-16_veca-tiny/stage3.sh veca-tiny CORE START
#   sh docs/results/2026-11-16_veca-tiny/stage3.sh veca-tiny-full CORE START --attention full
# from the top of the repository. START is the folder that stage 2 left (build/stage2/NAME/last), or
# its published snapshot with the adaptors beside it (README.md, "To go on"). Runs go to build/stage3.
set -e
name=$1 core=$2 start=$3
shift 3
mkdir -p build/stage3
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/stage3/$name" --resume \
    --start "$start" --seed 2 \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --optimizer.other-rate 1 --optimizer.core-step-rate 1 \
    --images ../shared/data/unlabelled_160 --validation-images 256 \
    --teacher efficientnet-lite2@16+32 \
    --cache-teacher build/kept --cache.crops 4 --cache.channels None --cache.seed 1 \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --batch 32 --steps 2400 --schedule.peak 2e-3 --schedule.warmup-steps 100 \
    --schedule.decay-steps 0 --ema 0.998 --publish-adaptors \
    --validate-every 2400 --save-every 200 --workers 1 "$@"
