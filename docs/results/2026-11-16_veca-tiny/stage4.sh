#!/bin/sh
# Stage 4 of veca-tiny and of its twin: 224 and 256 px on all photos, with the decay; the teacher
# sees the student's own resolution.
#   sh docs/results/2026-11-16_veca-tiny/stage4.sh veca-tiny CORE START
#   sh docs/results/2026-11-16_veca-tiny/stage4.sh veca-tiny-full CORE START --attention full
# from the top of the repository. START is the folder that stage 3 left (build/stage3/NAME/last), or
# its published snapshot with the adaptors beside it (README.md, "To go on"). Runs go to build/stage4.
set -e
name=$1 core=$2 start=$3
shift 3
mkdir -p build/stage4
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/stage4/$name" --resume \
    --start "$start" --seed 3 --resolutions '0:224*1,256*1' \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --optimizer.other-rate 1 --optimizer.core-step-rate 1 \
    --images '../shared/data/unlabelled_*/shard-*.tar' --validation-images 256 \
    --teacher efficientnet-lite2@16+32@16 \
    --cache-teacher build/kept-stage4 --cache.crops 1 --cache.channels None --cache.seed 3 \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --batch 32 --steps 1200 --schedule.peak 1.5e-3 --schedule.warmup-steps 50 \
    --schedule.decay-steps 700 --ema 0.998 --publish-adaptors \
    --validate-every 1200 --save-every 100 --workers 1 "$@"
