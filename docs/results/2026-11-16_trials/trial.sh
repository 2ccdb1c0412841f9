#!/bin/sh
# One trial: 12,800 pictures of 128 px through size tiny on one core, then the same probes.
#   sh docs/results/2026-11-16_trials/trial.sh NAME CORE [flags of veca distill ...]
# from the top of the repository, with the environment's bin on the PATH. Runs go to build/trials.
set -e
name=$1 core=$2
shift 2
run=build/trials/$name
mkdir -p build/trials
export OMP_NUM_THREADS=1
taskset -c "$core" veca distill tiny --out "$run" --resume --images ../shared/data/unlabelled_160 \
    --teacher efficientnet-lite2@16+32 --cache-teacher build/kept --cache.crops 2 --cache.channels 256 \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --backbone.coordinate-shift 0.08 --backbone.coordinate-rescale 2 --schedule.peak 1e-3 \
    --optimizer.other-rate 1 --optimizer.core-step-rate 1 \
    --batch 32 --steps 400 --schedule.warmup-steps 50 --schedule.decay-share 0.4 --ema 0.98 \
    --validation-images 256 --validate-every 400 --save-every 200 --workers 1 "$@"
probe() {
    taskset -c "$core" veca probe "$1" "../shared/data/$2" --model "$run/last" --budgets "$3" \
        --resolution "$4" --workers 1 --out "$run/probes"
}
probe knn classification/imagenette 8,64 128
probe logistic classification/imagenette 8,64 128
probe knn classification/pets 8,64 128
probe dense-knn segmentation/voc2012_animals 64 256
