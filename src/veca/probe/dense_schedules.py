"""Learning rates over the steps of a fit, as factors of the peak; pure functions."""

import math

from veca.probe.dense_config import DenseProtocol

WARMUP_START = 1e-6
"""Factor of the first step of 'warmup-poly'."""

CYCLE_START, CYCLE_END = 1 / 1000, 1 / 25_000
"""Factors that 'one-cycle' begins and ends with."""

CYCLE_BETAS = (0.85, 0.95)
"""First beta of 'one-cycle' after its warm-up: where it begins and ends."""


def learning_rate(protocol: DenseProtocol, peak: float, step: int) -> float:
    """The rate of a step, counted from 0.

    'poly': (1 - t / T) ** power, from the peak to the floor.
    'warmup-poly': the same, times a factor that rises linearly from 1e-6 to 1 (DINOv2).
    'warmup-cosine': a factor that rises linearly from 0 times what is linearly left, then half a
        cosine over the whole length, so that it goes on slightly below the peak (DINOv3).
    'one-cycle': half a cosine over the whole length, times a linear rise; at least a thousandth of
        the peak in the warm-up and 1 / 25,000 after it (DINOv3's depth).
    """
    done = step / protocol.steps
    rise = min(1.0, step / protocol.warmup) if protocol.warmup else 1.0
    if protocol.schedule == "poly":
        return _poly(protocol, peak, done)
    if protocol.schedule == "warmup-poly":
        return _poly(protocol, peak, done) * (WARMUP_START + (1 - WARMUP_START) * rise)
    if protocol.schedule == "warmup-cosine":
        if step < protocol.warmup:
            return peak * rise * (1 - done)
        return peak * _half_cosine((step + 1) / protocol.steps)
    if step < protocol.warmup:
        return peak * (CYCLE_START + _half_cosine(done) * rise)
    return peak * (CYCLE_END + (1 - CYCLE_END) * _half_cosine(done))


def first_beta(protocol: DenseProtocol, step: int) -> float:
    """AdamW's first beta: fixed, but for 'one-cycle', which has 0 in its warm-up and then rises."""
    if protocol.schedule != "one-cycle":
        return protocol.betas[0]
    if step < protocol.warmup:
        return 0.0
    done = (step - protocol.warmup) / max(1, protocol.steps - protocol.warmup)
    low, high = CYCLE_BETAS
    return high + (low - high) * _half_cosine(done)


def _poly(protocol: DenseProtocol, peak: float, done: float) -> float:
    """From the peak to the floor, or level where the peak lies below it."""
    floor = min(protocol.floor, peak)
    return floor + (peak - floor) * (1 - done) ** protocol.power


def _half_cosine(done: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * done))
