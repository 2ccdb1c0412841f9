#!/bin/sh
# Stage 4 of veca-tiny and of its twin: 192 px, with the photos of 256 px beside those of 160.
#   sh docs/results/2026-11-16_veca-tiny/stage4.sh veca-tiny CORE
#   sh docs/results/2026-11-16_veca-tiny/stage4.sh veca-tiny-full CORE --attention full
# from the top of the repository, after stage3.sh. Runs go to build/stage4.
set -e
name=$1 core=$2
shift 2
mkdir -p build/stage4
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/stage4/$name" --resume \
    --start "build/stage3/$name/last" --seed 3 --resolution 192 \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --images '../shared/data/unlabelled_*/shard-*.tar' --validation-images 256 \
    --teacher efficientnet-lite2@16+32 \
    --cache-teacher build/kept192 --cache.crops 2 --cache.channels None \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --batch 32 --steps 3000 --schedule.peak 1.5e-3 --schedule.warmup-steps 50 \
    --schedule.decay-steps 0 --ema 0.998 --publish-adaptors \
    --validate-every 1000 --save-every 100 --workers 1 "$@"
