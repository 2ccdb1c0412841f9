"""What local mixing costs in time: the same model with and without it, in turns.

    OMP_NUM_THREADS=1 python docs/results/2026-11-18_close-the-gap/local_time.py [--precision fp32]

Size small, one image, median of the ratios of neighboring rounds with their quartiles. On a quiet
machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import veca

ROUNDS = 31


def seconds(run: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    """Print a row for each resolution and budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    precision = parser.parse_args().precision
    models = [veca.build("small", local_kernel=kernel).eval() for kernel in (3, 0)]
    for model in models:
        model.precision = precision
    print(f"| px | cores | with / without, {precision} | quartiles |")
    print("| --: | --: | --: | --- |")
    for side in (256, 512, 1024):
        images = torch.randn(1, 3, side, side)
        for budget in (8, 64):
            ratios = []
            for turn in range(ROUNDS + 2):
                times = [0.0, 0.0]
                for index in (0, 1) if turn % 2 else (1, 0):
                    times[index] = seconds(lambda: models[index](images, budget))  # noqa: B023
                ratios.append(times[0] / times[1])
            low, middle, high = statistics.quantiles(ratios[2:], n=4)
            print(f"| {side} | {budget} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
