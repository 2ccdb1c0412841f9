#!/bin/sh
# Stage 5, the last, of veca-tiny and of its twin: 256 px on all photos, a second decay, the teacher
# at work beside (no kept outputs).
#   sh docs/results/2026-11-16_veca-tiny/stage5.sh veca-tiny CORE START
#   sh docs/results/2026-11-16_veca-tiny/stage5.sh veca-tiny-full CORE START --attention full
# from the top of the repository. START of the student is what wake.py makes of stage 4, that of the
# twin what stage 4 left, or the published snapshots with their adaptors (README.md, "To go on").
set -e
name=$1 core=$2 start=$3
shift 3
mkdir -p build/stage5
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/stage5/$name" --resume \
    --start "$start" --seed 4 --resolution 256 \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --images '../shared/data/unlabelled_*/shard-*.tar' --validation-images 256 \
    --teacher efficientnet-lite2@16+32@16 --cache.crops 0 \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --batch 32 --steps 400 --schedule.peak 1e-3 --schedule.warmup-steps 30 \
    --schedule.decay-steps 300 --optimizer.other-rate 0.25 --optimizer.core-step-rate 0.2 \
    --ema 0.995 --publish-adaptors \
    --validate-every 400 --save-every 80 --workers 1 "$@"
