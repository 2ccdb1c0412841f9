"""Where to compute, by name."""

import torch


def pick_device(name: str) -> torch.device:
    """The device of this name; 'auto' is the first graphics processor, or else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ) as error:  # as builds of torch differ
        raise ValueError(
            f"the device {name!r} cannot be used here; use 'auto', 'cpu', or 'cuda' where there is "
            "a graphics processor."
        ) from error
    if device.type == "meta":
        raise ValueError("the device 'meta' holds no numbers; use 'auto' or 'cpu'.")
    return device
