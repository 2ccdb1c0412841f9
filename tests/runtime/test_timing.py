"""Measuring in turns, on a clock that the tests move."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp

from veca.runtime.device import ran_out_of_memory
from veca.runtime.timing import (
    LOG_SECONDS,
    Effort,
    Timing,
    measure,
    speedup,
)

ONE_ROUND = Effort(rounds=1, seconds=0.0)


class Bench:
    """A clock, and cases that advance it by given seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def case(self, name: str, *seconds: float) -> Callable[[], None]:
        """A case that takes these seconds in turn, and the last of them for ever after."""

        def run() -> None:
            taken = seconds[min(self.calls.count(name), len(seconds) - 1)]
            self.calls.append(name)
            self.now += taken

        return run


def test_every_round_runs_every_case_once() -> None:
    bench = Bench()
    cases = {name: bench.case(name, 1.0) for name in "abc"}
    measure(cases, Effort(rounds=4, seconds=0.0), clock=bench.clock)
    rounds = [bench.calls[start : start + 3] for start in range(3, 15, 3)]
    assert len(bench.calls) == 15  # with a warm-up of each case
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)


def test_the_order_within_a_round_changes_and_the_seed_decides_it() -> None:
    orders = []
    for seed in (0, 0, 1):
        bench = Bench()
        cases = {name: bench.case(name, 1.0) for name in "abcd"}
        measure(cases, Effort(rounds=5, seconds=0.0), seed=seed, clock=bench.clock)
        orders.append(bench.calls)
    rounds = {tuple(orders[0][start : start + 4]) for start in range(4, 24, 4)}
    assert len(rounds) > 1
    assert orders[0] == orders[1] != orders[2]


def test_the_median_and_the_quartiles_are_those_of_the_rounds_without_the_warm_up() -> None:
    bench = Bench()
    cases = {"a": bench.case("a", 9.0, 0.005, 0.001, 0.100, 0.002, 0.003)}
    timing = measure(cases, Effort(rounds=5, seconds=0.0), clock=bench.clock)["a"]
    assert timing.samples == pytest.approx((5, 1, 100, 2, 3))
    assert timing.milliseconds == pytest.approx((2, 3, 5))
    assert not timing.note


def test_rounds_continue_until_the_quickest_case_was_measured_long_enough() -> None:
    bench = Bench()
    cases = {"quick": bench.case("quick", 0.1), "slow": bench.case("slow", 1.0)}
    timings = measure(cases, Effort(rounds=2, seconds=0.95), clock=bench.clock)
    assert {len(timing.samples) for timing in timings.values()} == {10}


def test_a_case_that_used_up_its_time_drops_out_with_a_note_while_others_continue() -> None:
    bench = Bench()
    cases = {"quick": bench.case("quick", 1.0), "slow": bench.case("slow", 40.0)}
    effort = Effort(rounds=7, seconds=0.0, most_seconds=100.0)
    timings = measure(cases, effort, clock=bench.clock)
    assert len(timings["quick"].samples) == 7
    assert len(timings["slow"].samples) == 2
    assert timings["slow"].note == "2 of 7 rounds, 120 s"


def test_a_first_call_that_uses_up_the_time_is_the_sample() -> None:
    bench = Bench()
    cases = {"slow": bench.case("slow", 130.0)}
    timing = measure(cases, Effort(most_seconds=100.0), clock=bench.clock)["slow"]
    assert bench.calls == ["slow"]
    assert timing.samples == (130_000.0,)
    assert timing.note == "one call without a warm-up, which took 130 s"


def test_a_case_that_runs_out_of_memory_gets_a_note_and_others_continue() -> None:
    def fail() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")

    bench = Bench()
    cases = {"large": fail, "small": bench.case("small", 1.0)}
    timings = measure(cases, Effort(rounds=3, seconds=0.0), clock=bench.clock)
    assert timings["large"] == Timing((), "out of memory")
    assert len(timings["small"].samples) == 3


def test_other_errors_end_the_run() -> None:
    def fail() -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        measure({"a": fail}, ONE_ROUND)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_each_way_to_run_out_of_memory_is_known(error: BaseException) -> None:
    assert ran_out_of_memory(error)
    assert not ran_out_of_memory(ValueError("can't allocate memory"))


def test_a_long_run_logs_its_progress(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "veca")
    bench = Bench()
    cases = {"a": bench.case("a", 8.0), "b": bench.case("b", 1.0)}
    effort = Effort(rounds=5, seconds=0.0)
    measure(cases, effort, clock=bench.clock)
    assert 1 <= len(caplog.messages) <= 54 // LOG_SECONDS
    assert caplog.messages[-1].startswith("round ")


def test_cases_run_without_gradients() -> None:
    seen = []
    measure({"a": lambda: seen.append(torch.is_inference_mode_enabled())}, ONE_ROUND)
    assert seen == [True, True]


def test_the_speedup_is_taken_round_by_round() -> None:
    ours, rival = Timing((1.0, 10.0, 2.0)), Timing((2.0, 20.0, 5.0, 1000.0))
    assert speedup(ours, rival)[:3] == pytest.approx((2.0, 2.0, 2.25))


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 8, 30])
def test_a_speedup_is_clear_where_a_t_test_of_its_logarithms_says_so(rounds: int) -> None:
    draw = np.random.default_rng(rounds)
    clear = list[bool]()
    for mean in np.linspace(0, 0.4, 30):
        logs = draw.normal(mean, 0.1, rounds)
        found = speedup(Timing((1.0,) * rounds), Timing(tuple(np.exp(logs))))
        assert found.clear == (rounds > 1 and ttest_1samp(logs, 0).pvalue < 0.01)
        clear.append(found.clear)
    assert any(clear) or rounds < 3
    assert not clear[0]


@pytest.mark.parametrize("most", [0.0, 1.0])
def test_less_time_at_most_than_at_least_is_refused(most: float) -> None:
    with pytest.raises(ValueError, match="contradict each other; raise the maximum"):
        Effort(seconds=2.0, most_seconds=most)
    with pytest.raises(ValueError, match="use at least 1 round"):
        Effort(rounds=0)
