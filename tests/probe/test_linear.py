"""Linear probes follow their protocol, choose as it says, and do not depend on their company."""

from typing import Any

import pytest
import torch
from torch import Tensor

from veca.probe.held_out import hold_out
from veca.probe.linear import Judges, LinearFit, _batches, fit_linear
from veca.probe.metrics import top1
from veca.probe.protocols import LinearProtocol, ProtocolError

COUNT, CLASSES = 60, 3
LABELS = torch.arange(COUNT) % CLASSES


def protocol(**changes: Any) -> LinearProtocol:
    """A short one."""
    return LinearProtocol(**{"name": "short", "rates": (0.1,), "batch": 16, "steps": 40, **changes})


def features(rows: int = COUNT, width: int = 8, seed: int = 0) -> Tensor:
    """Features that tell something of the labels."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(rows, width, generator=generator)
    return noise + 0.7 * centers[torch.arange(rows) % COUNT % CLASSES]


def fit(given: dict[str, Tensor], plan: LinearProtocol, seed: int = 0, **more: Any) -> Any:
    """The chosen heads."""
    return fit_linear(given, LABELS, plan, seed, num_classes=CLASSES, **more)


def same(first: LinearFit, second: LinearFit) -> bool:
    """Whether two fits chose the same head, to the last bit."""
    heads = first.head, second.head
    return (first.rate, first.step, first.judged) == (second.rate, second.step, second.judged) and (
        torch.equal(heads[0].weight, heads[1].weight) and torch.equal(heads[0].bias, heads[1].bias)
    )


def test_training_is_that_of_torch_with_a_cosine_schedule() -> None:
    given, plan = features(), protocol()
    found = fit({"a": given}, plan)["a"]
    layer = torch.nn.Linear(8, CLASSES)
    start = fit({"a": given}, protocol(steps=1, rates=(1e-30,)))["a"].head  # hardly a step
    layer.load_state_dict({"weight": start.weight, "bias": start.bias})
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    for batch in _batches(torch.arange(COUNT), COUNT, plan, 0):
        optimizer.zero_grad()
        logits = layer(given[batch.rows])
        torch.nn.functional.cross_entropy(logits, LABELS[batch.pictures]).backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(found.head.weight, layer.weight.detach())
    torch.testing.assert_close(found.head.bias, layer.bias.detach())
    assert (found.rate, found.step, found.judged) == (0.1, 40, {})


def test_weights_start_small_and_biases_at_zero() -> None:
    wide = {"a": features(width=3000)}
    head = fit(wide, protocol(steps=1, rates=(1e-30,), init_std=0.01))["a"].head
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert head.weight.mean().item() == pytest.approx(0, abs=5e-4)
    assert head.bias.abs().max().item() < 1e-6


def test_every_picture_comes_once_before_any_comes_again() -> None:
    pictures = torch.arange(0, COUNT, 2)  # 30 of them
    plan = protocol(batch=12, steps=10, views=3)
    batches = list(_batches(pictures, COUNT, plan, 5))
    assert [len(batch.rows) for batch in batches] == [12] * 10
    order = torch.cat([batch.pictures for batch in batches])
    for shuffle in order.split(30):
        assert shuffle.sort().values.tolist() == pictures.tolist()
    assert not torch.equal(order[:30], order[30:60])
    rows = torch.cat([batch.rows for batch in batches])
    assert torch.equal(rows % COUNT, order)
    assert (rows // COUNT).unique().tolist() == [0, 1, 2]


def test_a_batch_may_be_larger_than_the_set() -> None:
    batch = next(iter(_batches(torch.arange(5), 5, protocol(batch=12), 0)))
    assert sorted(batch.pictures.bincount().tolist()) == [2, 2, 2, 3, 3]


def test_one_seed_gives_the_same_bits_and_another_seed_others() -> None:
    given = {"a": features(), "b": features(seed=1)}
    first, again, other = (fit(given, protocol(), seed) for seed in (0, 0, 1))
    assert all(same(first[key], again[key]) for key in given)
    assert not same(first["a"], other["a"])


def test_a_head_does_not_depend_on_what_trains_beside_it() -> None:
    given = {"a": features(), "wide": features(width=12), "b": features(seed=1)}
    plan = protocol(rates=(0.1, 0.01), selection="test")
    judges = Judges({key: each[:30] for key, each in given.items()}, LABELS[:30])
    together = fit(given, plan, judges=judges)
    assert list(together) == ["a", "wide", "b"]
    for key, each in given.items():
        alone = fit({key: each}, plan, judges=judges)[key]
        torch.testing.assert_close(together[key].head.weight, alone.head.weight)
        assert (together[key].rate, together[key].step) == (alone.rate, alone.step)


def test_the_best_rate_at_the_last_step_is_chosen_on_the_judges() -> None:
    given, judging = {"a": features()}, features(seed=2)
    plan = protocol(rates=(1e-4, 0.1, 1e-3), selection="test")
    found = fit(given, plan, judges=Judges({"a": judging}, LABELS))["a"]
    for rate in plan.rates:
        head = fit(given, protocol(rates=(rate,)))["a"].head
        assert found.judged[rate] == {40: pytest.approx(top1(head.scores(judging), LABELS))}
        if rate == found.rate:
            torch.testing.assert_close(head.weight, found.head.weight)
    best = max(accuracy[40] for accuracy in found.judged.values())
    assert found.judged[found.rate][40] == best
    assert found.step == 40


def test_the_best_step_is_kept_as_it_was() -> None:
    given, judging = {"a": features()}, features(seed=2)
    plan = protocol(rates=(0.3, 1e-3), selection="test-best-step", validate_every=7)
    found = fit(given, plan, judges=Judges({"a": judging}, LABELS))["a"]
    assert list(found.judged[0.3]) == [7, 14, 21, 28, 35, 40]
    everything = [
        (step, number, accuracy)
        for number, steps in enumerate(found.judged.values())
        for step, accuracy in steps.items()
    ]
    step, number, best = max(everything, key=lambda each: (each[2], -each[0], -each[1]))
    assert (found.step, found.rate) == (step, plan.rates[number])
    assert top1(found.head.scores(judging), LABELS) == pytest.approx(best)


def test_pictures_put_aside_are_judged_in_all_views_and_never_trained_on() -> None:
    given = {"a": features(2 * COUNT)}
    plan = protocol(views=2, selection="held-out", held_out_share=0.25)
    kept, aside = hold_out(COUNT, 0.25, 0)
    found = fit(given, plan)["a"]
    assert found.fitted_on == len(kept) == 45
    judges = Judges(
        {"a": torch.cat([given["a"][aside], given["a"][COUNT + aside]])}, LABELS[aside].repeat(2)
    )
    assert same(found, fit(given, plan, judges=judges, pictures=kept)["a"])
    spoilt = given["a"].clone()
    spoilt[torch.cat((aside, COUNT + aside))] = torch.nan
    assert torch.equal(fit({"a": spoilt}, plan)["a"].head.weight, found.head.weight)


def test_pictures_without_a_class_neither_teach_nor_judge() -> None:
    several = torch.nn.functional.one_hot(LABELS, CLASSES).bool()
    several[::5] = False
    given = features()
    given[::5] = torch.nan
    for selection in ("none", "held-out"):
        plan = protocol(selection=selection)
        found = fit_linear({"a": given}, several, plan, 0, num_classes=CLASSES)["a"]
        assert bool(found.head.weight.isfinite().all())
    kept = several.any(dim=1).nonzero().flatten()
    everything = torch.arange(COUNT)
    found = fit_linear(
        {"a": given}, several, protocol(), 0, num_classes=CLASSES, pictures=everything
    )["a"]
    numbers = fit({"a": given}, protocol(), pictures=kept)["a"]
    assert same(found, numbers)
    assert found.fitted_on == numbers.fitted_on == len(kept) == 48


def test_features_may_be_halves_on_the_way() -> None:
    half = features().half()
    found = fit({"a": half}, protocol(), device=torch.device("cpu"))["a"].head
    assert found.weight.dtype == torch.float32
    torch.testing.assert_close(found.weight, fit({"a": half.float()}, protocol())["a"].head.weight)


def test_a_fit_learns_what_can_be_learned() -> None:
    found = fit({"a": features(), "noise": torch.randn(COUNT, 8)}, protocol(steps=300))
    test = features(seed=5)
    assert top1(found["a"].head.scores(test), LABELS) > 60
    assert top1(found["noise"].head.scores(test), LABELS) < 60


def test_progress_is_told_step_by_step() -> None:
    heard: list[int] = []
    fit({"a": features()}, protocol(steps=7), advance=heard.append)
    assert heard == [1] * 7


def test_what_cannot_be_fitted_is_refused() -> None:
    given = {"a": features()}
    with pytest.raises(ProtocolError, match="feature of a has 60 rows, but 60 labels and views=2"):
        fit(given, protocol(views=2))
    with pytest.raises(ProtocolError, match="'test' of 'short' needs the pictures to choose by"):
        fit(given, protocol(selection="test"))
    with pytest.raises(ProtocolError, match="judges have no feature of a"):
        fit(given, protocol(selection="test"), judges=Judges({}, LABELS))
    nothing = torch.zeros(COUNT, CLASSES, dtype=torch.bool)
    with pytest.raises(ProtocolError, match="no picture to choose by has a class"):
        fit(given, protocol(selection="test"), judges=Judges(given, nothing))
    with pytest.raises(ProtocolError, match="no picture to train on has a class"):
        fit_linear(given, nothing, protocol(), 0, num_classes=CLASSES)
    with pytest.raises(ProtocolError, match=r"head of a has left all bounds with the rate 1e\+38"):
        fit(given, protocol(rates=(1e38,)))
