"""Makes a model as it might have been before it was rounded to half precision.

    python docs/results/2026-11-16_veca-tiny/halves.py veca-tiny build/unrounded

from the top of the repository. Every weight is moved, by chance, to anywhere that rounds to what is
stored, and the model is saved in single precision. If probes of it equal those of the stored model,
rounding costs nothing that they see; the weights before rounding were lost with their machine.
"""

import sys

import torch

import veca


@torch.no_grad()
def main(name: str, target: str, seed: str = "0") -> None:
    """Read, move, save."""
    model, draw = veca.load(name), torch.Generator().manual_seed(int(seed))
    moved, most = 0.0, 0.0
    for weight in model.parameters():
        half = weight.half()
        if not torch.equal(half.float(), weight):
            raise ValueError(f"{name} is not stored in half precision, so nothing was rounded.")
        gap = torch.nextafter(half.abs(), torch.tensor(torch.inf).half()).float() - half.abs()
        step = (torch.rand(weight.shape, generator=draw) - 0.5) * gap
        power = half.abs().float().log2()
        inward = (power == power.floor()) & (step * weight < 0)  # below a power of two gaps halve
        step = torch.where(inward, step / 2, step)
        weight.add_(step)
        moved, most = (
            moved + float((weight.half() != half).sum()),
            max(most, float(step.abs().max())),
        )
    veca.save(model, target)
    sys.stdout.write(
        f"{target}: the largest step is {most:.2g}, {moved:.0f} weights round elsewhere\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
