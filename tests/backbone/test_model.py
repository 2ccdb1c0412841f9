"""The model as a whole: which tokens read which, what nests, what local mixing adds."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import veca
from veca.backbone import rope as rotary
from veca.backbone.attention import Layout
from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA, Features, LocalMixing
from veca.backbone.rope import rope_at

TINY = BackboneConfig(
    layers=3, width=32, heads=2, patch_size=4, budgets=(2, 4, 8), ffn_shares=(0.25, 0.5, 1.0)
)
BUDGETS = (1, 2, 3, 4, 7, 8)


def model(config: BackboneConfig = TINY, seed: int = 0, **fields: Any) -> VECA:
    """A model whose every parameter is far from its start, so that nothing hides behind zeros."""
    torch.manual_seed(seed)
    made = VECA(BackboneConfig(**{**vars(config), **fields})).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif not name.startswith("core_bank"):
                parameter.normal_(std=0.15)
    return made


def images(batch: int = 2, height: int = 12, width: int = 20, channels: int = 3) -> Tensor:
    torch.manual_seed(99)
    return torch.randn(batch, channels, height, width)


def assert_identical(actual: Features, expected: Features) -> None:
    assert actual.grid == expected.grid
    for mine, other in zip(actual[:3], expected[:3], strict=True):
        assert torch.equal(mine, other)


def patch_to_patch(layers: int) -> Tensor:
    """How strongly the first patch's output depends on the pixels of every patch."""
    pixels = images(1).requires_grad_()
    output = model(layers=layers)(pixels).patches[0, 0].square().sum()
    (gradient,) = torch.autograd.grad(output, pixels)
    return gradient.unfold(2, 4, 4).unfold(3, 4, 4).abs().sum((0, 1, 4, 5)).flatten()


def test_a_patch_is_blind_to_other_patches_after_one_block_and_not_after_two() -> None:
    one, two = patch_to_patch(1), patch_to_patch(2)
    assert one[0] > 0
    assert torch.equal(one[1:], torch.zeros(14))
    assert (two > 0).all()


def test_every_core_reads_every_patch_after_one_block() -> None:
    single = model(layers=1)
    for core in range(8):
        pixels = images(1).requires_grad_()
        (gradient,) = torch.autograd.grad(single(pixels).cores[0, core].square().sum(), pixels)
        read = gradient.unfold(2, 4, 4).unfold(3, 4, 4).abs().sum((0, 1, 4, 5))
        assert (read > 0).all()


@pytest.mark.parametrize("form", ["plain", "folded"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_gives_what_a_model_with_only_these_cores_gives(budget: int, form: Any) -> None:
    whole = model()
    alone = model(budgets=(budget,))
    state = whole.state_dict()
    for name in ("tokens", "points"):
        chunks = [state.pop(f"core_bank.{name}.{number}") for number in range(3)]
        state[f"core_bank.{name}.0"] = torch.cat(chunks)[:budget]
    alone.load_state_dict(state)
    for built in (whole, alone):
        built.set_attention_form(form)
    for mine, other in zip(whole(images(), budget), alone(images()), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("budget", BUDGETS)
def test_cores_beyond_the_budget_do_not_matter(budget: int) -> None:
    whole, changed = model(), model()
    with torch.no_grad():
        start = 0
        for tokens, points in zip(changed.core_bank.tokens, changed.core_bank.points, strict=True):
            tokens[max(budget - start, 0) :] = 1e3
            points[max(budget - start, 0) :] = 1e3
            start += len(tokens)
    assert_identical(whole(images(), budget), changed(images(), budget))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.7, 1.0])
def test_a_share_gives_what_a_model_with_only_these_hidden_units_gives(share: float) -> None:
    whole = model()
    units = TINY.hidden_units(share)
    alone = model(ffn_ratio=(units + 0.5) / TINY.width)
    assert alone.config.hidden == units
    state = whole.state_dict()
    for name in list(state):
        if ".expand." in name:
            state[name] = state[name].unflatten(0, (2, -1))[:, :units].flatten(0, 1)
        elif name.endswith("contract.weight"):
            state[name] = state[name][:, :units]
    alone.load_state_dict(state)
    for mine, other in zip(whole(images(), ffn=share), alone(images()), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("budget", TINY.budgets)
def test_an_adamw_step_leaves_cores_beyond_the_budget_bit_identical(budget: int) -> None:
    student = model().train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.1, weight_decay=0.5)
    for used in (8, budget):  # the first step gives every core a momentum
        before = {name: value.clone() for name, value in student.named_parameters()}
        optimizer.zero_grad(set_to_none=True)
        features = student(images(), used)
        (features.image.square().mean() + features.patches.square().mean()).backward()
        optimizer.step()
    start = 0
    for number, size in enumerate((2, 2, 4)):
        for name in (f"core_bank.tokens.{number}", f"core_bank.points.{number}"):
            same = torch.equal(before[name], student.get_parameter(name))
            assert same == (start >= budget), name
        start += size


@pytest.mark.parametrize("form", ["plain", "folded"])
def test_a_batch_equals_its_images_one_by_one(form: Any) -> None:
    whole = model()
    whole.set_attention_form(form)
    together = whole(images(3), 5)
    for number in range(3):
        alone = whole(images(3)[number : number + 1], 5)
        torch.testing.assert_close(together.cores[number], alone.cores[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(together.patches[number], alone.patches[0], atol=1e-5, rtol=0)


@given(data=st.data())
def test_any_size_budget_share_and_batch_gives_finite_features_of_the_promised_shape(
    data: st.DataObject,
) -> None:
    draw = data.draw
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    budgets = tuple(sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=4))))
    budget = draw(st.none() | st.integers(1, budgets[-1]))
    share = draw(st.none() | st.floats(0.01, 1.0))
    heads = draw(st.integers(1, 3))
    built = model(heads=heads, width=heads * 8, in_channels=channels, budgets=budgets)
    built.set_attention_form(draw(st.sampled_from(["auto", "plain", "folded"])))
    with torch.no_grad():
        features = built(images(batch, rows * 4, columns * 4, channels), budget, share)
    cores = budget or budgets[-1]
    assert features.cores.shape == (batch, cores, heads * 8)
    assert features.patches.shape == (batch, rows * columns, heads * 8)
    assert features.patch_map.shape == (batch, heads * 8, rows, columns)
    assert features.image.shape == (batch, heads * 8)
    assert features.core_points.shape == (batch, cores, 2)
    assert features.grid == (rows, columns)
    assert all(torch.isfinite(part).all() for part in features[:3])


def pushed(scale: float) -> Tensor:
    """Paths of cores whose steps are so large."""
    wild = model()
    with torch.no_grad():
        for step in wild.core_steps:
            step.get_parameter("scale").fill_(scale)
    return wild.core_paths(images())


def test_cores_never_leave_the_image_however_hard_they_are_pushed() -> None:
    assert pushed(1000.0).abs().max() <= 1
    paths = pushed(0.5)
    assert paths.abs().max() < 1
    assert (paths[1:] - paths[:-1]).abs().amax((1, 2, 3)).min() > 1e-3  # they move in every layer


def test_core_paths_start_at_the_bank_and_end_where_the_features_say() -> None:
    built = model()
    paths = built.core_paths(images(), budget=5)
    assert paths.shape == (3, 2, 5, 2)
    torch.testing.assert_close(paths[0], built.core_bank(2, 5)[1].tanh())
    torch.testing.assert_close(paths[-1], built(images(), 5).core_points)


def test_intermediates_come_in_the_order_asked_for_and_end_with_the_features() -> None:
    built = model()
    last, first = built.intermediates(images(), layers=(2, 0), budget=5)
    assert_identical(last, built(images(), 5))
    assert not torch.allclose(first.patches, last.patches)
    (raw,) = built.intermediates(images(), layers=(2,), budget=5, norm=False)
    torch.testing.assert_close(built.final_norm(raw.patches), last.patches)
    assert built.intermediates(images(), layers=()) == []


def test_a_layer_is_named_alike_everywhere() -> None:
    built, pixels = model(), images()
    for layer, number in ((None, 2), (-1, 2), (-3, 0), (1, 1)):
        (one,) = built.intermediates(pixels, layer, budget=5)
        assert_identical(one, built.intermediates(pixels, [number], budget=5)[0])
        for maps in (built.core_maps, built.patch_maps, built.attention_maps):
            assert torch.equal(maps(pixels, layer, budget=5), maps(pixels, number, budget=5))
        (same,) = built.layer_maps(pixels, layer, budget=5)
        assert torch.equal(same.core_maps, built.core_maps(pixels, number, budget=5))
    first, last = built.intermediates(pixels, (-3, -1), budget=5)
    assert_identical(last, built.intermediates(pixels, budget=5)[0])
    assert not torch.allclose(first.patches, last.patches)


def test_core_maps_are_shares_that_leave_room_for_the_cores() -> None:
    built = model()
    maps = built.core_maps(images(), layer=2, budget=5)
    weights = built.attention_maps(images(), layer=2, budget=5)
    assert (maps.shape, weights.shape) == ((2, 5, 3, 5), (2, 2, 5, 3, 5))
    for shares in (maps, weights):
        assert (shares >= 0).all()
        assert ((shares.sum((-1, -2)) > 0) & (shares.sum((-1, -2)) < 1)).all()


def test_patch_maps_share_out_what_a_patch_reads_among_the_cores() -> None:
    built = model()
    maps = built.patch_maps(images(), layer=2, budget=5)
    assert maps.shape == (2, 5, 3, 5)
    torch.testing.assert_close(maps.sum(1), torch.ones(2, 3, 5))
    torch.testing.assert_close(built.patch_maps(images(), 1, budget=1), torch.ones(2, 1, 3, 5))
    with pytest.raises(ValueError, match=r"attention='full' has no patch maps.*use core_maps"):
        model(attention="full", budgets=BackboneConfig.budgets).patch_maps(images(), layer=2)


@pytest.mark.parametrize("fields", [{}, {"local_kernel": 3, "core_motion": "attention"}])
def test_one_pass_gives_the_maps_and_features_of_every_layer(fields: dict[str, Any]) -> None:
    built, asked = model(**fields), (2, 0)
    found = built.layer_maps(images(), asked, budget=5)
    expected = built.intermediates(images(), asked, budget=5)
    for layer, maps, features in zip(asked, found, expected, strict=True):
        assert_identical(maps.features, features)
        assert torch.equal(maps.core_maps, built.core_maps(images(), layer, budget=5))
        assert torch.equal(maps.patch_maps, built.patch_maps(images(), layer, budget=5))
        assert torch.equal(maps.features.core_points, built.core_paths(images(), 5)[layer])


def test_evaluation_is_repeatable_and_training_jitters_the_patches() -> None:
    built, pixels = model(), images()
    assert torch.equal(built(pixels).patches, built(pixels).patches)
    built.train()
    assert not torch.equal(built(pixels).patches, built(pixels).patches)
    still = model(coordinate_shift=0.0, coordinate_rescale=1.0).train()
    torch.testing.assert_close(still(images()).patches, still.eval()(images()).patches)


@pytest.mark.parametrize("fields", [{}, {"local_kernel": 3, "core_motion": "attention"}])
def test_recomputed_activations_give_the_same_gradients(fields: dict[str, Any]) -> None:
    plain, frugal = model(**fields), model(**fields)
    frugal.set_grad_checkpointing()
    plain.set_grad_checkpointing(False)
    for built in (plain, frugal):
        built(images(), 4, 0.5).patches.square().sum().backward()
    gradients = [[value.grad for value in built.parameters()] for built in (plain, frugal)]
    assert any(gradient is not None for gradient in gradients[0])
    for mine, other in zip(*gradients, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other)


def test_every_parameter_learns_at_the_full_budget() -> None:
    built = model()
    features = built(images())
    (features.image.square().sum() + features.patches.square().sum()).backward()
    for name, value in built.named_parameters():
        assert value.grad is not None, name
        assert value.grad.abs().sum() > 0, name


def test_a_model_cast_to_half_keeps_its_positions_in_single_precision() -> None:
    built = model().bfloat16()
    features = built(images(), 4)
    assert features.patches.dtype == torch.bfloat16
    assert features.core_points.dtype == torch.float32
    turn, exact = built.tokenize(images(), 4).patch_rope, model().tokenize(images(), 4).patch_rope
    assert torch.equal(turn.cosines, exact.cosines)
    assert turn.cosines.dtype == torch.float32


class Doubled(nn.Linear):
    """Stands for a LoRA or quantized layer: its weight alone is not what it computes."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * 2


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_replaced_feedforward_layer_is_really_called_at_every_share(share: float) -> None:
    part = model().block_of(0).feedforward
    tokens, units = torch.randn(1, 4, 32), TINY.hidden_units(share)
    replaced = copy.deepcopy(part)
    replaced.contract = Doubled(TINY.hidden, 32)
    replaced.contract.load_state_dict(part.contract.state_dict())
    torch.testing.assert_close(replaced(tokens, units), part(tokens, units) * 2)


def test_keeping_the_image_feature_does_not_keep_the_patches() -> None:
    features = model()(images())
    assert features.image.untyped_storage().nbytes() == 2 * 8 * 32 * 4


def test_double_precision_is_double_throughout() -> None:
    single, double = model(), model().double()
    features = double(images().double(), 4)
    assert features.core_points.dtype == torch.float64
    rough = single(images(), 4).patches.double()
    torch.testing.assert_close(rough, features.patches, atol=1e-4, rtol=0)


def test_training_after_inference_at_the_same_size_works() -> None:
    rotary.cached_patch_rope.cache_clear()
    built = model()
    with torch.inference_mode():
        built(images())
    built(images()).patches.sum().backward()


@pytest.mark.parametrize("prefix", [1, 5])
def test_the_full_attention_baseline_gives_features_of_the_same_form(prefix: int) -> None:
    baseline = model(attention="full", prefix_tokens=prefix, budgets=BackboneConfig.budgets)
    features = baseline(images())
    assert features.cores.shape == (2, prefix, 32)
    assert features.patches.shape == (2, 15, 32)
    assert torch.equal(features.core_points, torch.zeros(2, prefix, 2))
    assert baseline.attention_maps(images(), 1).shape == (2, 2, prefix, 3, 5)
    assert baseline.core_maps(images(), 1).shape == (2, prefix, 3, 5)
    with pytest.raises(ValueError, match="has no cores; leave it out"):
        baseline(images(), 1)


def test_nothing_but_parameters_is_needed_to_move_a_model() -> None:
    source = model()
    with torch.device("meta"):
        empty = VECA(TINY)
    filled = empty.to_empty(device="cpu").eval()
    filled.load_state_dict(source.state_dict())
    assert torch.equal(filled(images()).patches, source(images()).patches)
    assert torch.equal(copy.deepcopy(source)(images()).patches, source(images()).patches)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_no_tensor_strays_to_the_cpu_when_the_model_is_on_a_gpu(
    training: bool, attention: Any
) -> None:
    fields = {**vars(TINY), "attention": attention}
    if attention == "full":
        fields["budgets"] = BackboneConfig.budgets
    with torch.device("meta"):
        there = VECA(BackboneConfig(**fields)).train(training)
    shapes = {name: value.shape for name, value in there.state_dict().items()}
    with FakeTensorMode(), torch.no_grad():  # no data, on a device that need not exist
        weights = {name: torch.empty(shape, device="cuda") for name, shape in shapes.items()}
        there.load_state_dict(weights, assign=True)
        pixels = torch.empty(2, 3, 12, 20, device="cuda")
        for form in ("plain", "folded"):
            there.set_attention_form(form)
            features = there(pixels, ffn=0.5)
            assert {part.device.type for part in features[:3]} == {"cuda"}
        assert there.attention_maps(pixels, 1).device.type == "cuda"
        assert there.core_maps(pixels, 1).device.type == "cuda"


def test_faking_leaves_no_trace_in_the_cache() -> None:
    rotary.cached_patch_rope.cache_clear()
    with FakeTensorMode():
        VECA(TINY).eval()(torch.randn(1, 3, 12, 20))
    assert rotary.cached_patch_rope.cache_info().currsize == 0
    model()(images())


def test_the_patch_map_is_the_patches_row_by_row_and_the_image_feature_the_first_core() -> None:
    patches = torch.arange(2 * 6 * 4.0).reshape(2, 6, 4)
    features = Features(torch.randn(2, 3, 4), patches, torch.zeros(2, 3, 2), (2, 3))
    assert features.patch_map.shape == (2, 4, 2, 3)
    assert torch.equal(features.patch_map[1, :, 1, 2], patches[1, 5])
    assert torch.equal(features.patch_map[0, :, 0, 1], patches[0, 1])
    assert torch.equal(features.image, features.cores[:, 0])


LOCAL = BackboneConfig(layers=3, width=32, heads=2, patch_size=4, budgets=(2, 4, 8), local_kernel=3)


def local_model(**fields: Any) -> VECA:
    """A model whose convolutions have an effect."""
    torch.manual_seed(0)
    made = VECA(BackboneConfig(**{**vars(LOCAL), **fields})).eval()
    for name, parameter in made.named_parameters():
        if "local_mixing" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def mixed_by_hand(weight: Tensor, tokens: Tensor, budget: int, grid: tuple[int, int]) -> Tensor:
    """Every patch plus the weighted sum of its neighbors, one by one, the border repeated."""
    rows, columns = grid
    reach = weight.shape[-1] // 2
    found = tokens.clone()
    for row, column in itertools.product(range(rows), range(columns)):
        total = torch.zeros_like(tokens[:, 0])
        for down, across in itertools.product(range(-reach, reach + 1), repeat=2):
            there = min(max(row + down, 0), rows - 1), min(max(column + across, 0), columns - 1)
            neighbor = tokens[:, budget + there[0] * columns + there[1]]
            total += weight[:, 0, down + reach, across + reach] * neighbor
        found[:, budget + row * columns + column] += total
    return found


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    budget=st.integers(1, 4),
    kernel=st.sampled_from([3, 5]),
)
def test_the_convolution_equals_sums_over_neighbors_by_hand(
    rows: int, columns: int, budget: int, kernel: int
) -> None:
    mixing = LocalMixing(BackboneConfig(width=8, heads=1, local_kernel=kernel))
    torch.nn.init.normal_(mixing.weight)
    tokens = torch.randn(2, budget + rows * columns, 8)
    nowhere = rope_at(torch.zeros(1, 2), torch.zeros(2))
    layout = Layout(budget, (rows, columns), nowhere, nowhere)
    expected = mixed_by_hand(mixing.weight.detach(), tokens, budget, (rows, columns))
    torch.testing.assert_close(mixing(tokens, layout), expected, atol=1e-5, rtol=1e-5)


def test_an_untrained_convolution_changes_nothing() -> None:
    torch.manual_seed(0)
    plain = VECA(BackboneConfig(**{**vars(LOCAL), "local_kernel": 0})).eval()
    torch.manual_seed(0)
    local = VECA(LOCAL).eval()
    for mine, other in zip(local(images(), 4)[:3], plain(images(), 4)[:3], strict=True):
        assert torch.equal(mine, other)


def test_a_patch_depends_on_its_neighbors_and_no_other_patch_after_one_block() -> None:
    pixels = images(1).requires_grad_()
    output = local_model(layers=1)(pixels).patches[0, 7] @ torch.linspace(-1, 1, 32)
    (gradient,) = torch.autograd.grad(output, pixels)
    heard = gradient.unfold(2, 4, 4).unfold(3, 4, 4).abs().sum((0, 1, 4, 5))  # 3 x 5 patches
    near = torch.zeros(3, 5, dtype=torch.bool)
    near[0:3, 1:4] = True  # around row 1, column 2
    assert torch.equal(heard > 0, near)


@pytest.mark.parametrize(("motion", "budget"), [("paper", 1), ("normalized", 3), ("attention", 8)])
def test_both_forms_of_attention_agree(motion: Any, budget: int) -> None:
    mine, other = local_model(core_motion=motion), local_model(core_motion=motion)
    mine.set_attention_form("plain")
    other.set_attention_form("folded")
    for one, two in zip(mine(images(), budget)[:3], other(images(), budget)[:3], strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_maps_show_the_tokens_that_attention_reads() -> None:
    made = local_model(layers=1)
    block = made.block_of(0)
    state = made.tokenize(images(), 4)
    tokens = block.attention_norm(
        mixed_by_hand(block.local_mixing.weight.detach(), state.tokens, 4, state.grid)  # type: ignore[union-attr]
    )
    weights = block.attention.core_weights(tokens, state.layout)
    expected = weights[..., 4:].unflatten(-1, state.grid)
    torch.testing.assert_close(
        made.attention_maps(images(), 0, budget=4), expected, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(("stored", "asked"), [(0, 3), (0, 5), (3, 5), (3, 3)])
def test_a_stored_model_gains_a_larger_convolution_unchanged(
    stored: int, asked: int, tmp_path: Path
) -> None:
    made = local_model(local_kernel=stored)
    veca.save(made, tmp_path)
    opened = veca.load(tmp_path, local_kernel=asked)
    assert opened.config.local_kernel == asked
    for mine, other in zip(opened(images(), 4)[:3], made(images(), 4)[:3], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)
    opened.train()
    opened(images(), 4).patches.square().sum().backward()
    for parameter in (p for name, p in opened.named_parameters() if "local_mixing" in name):
        assert parameter.grad is not None
        assert parameter.grad.any()


def test_a_convolution_is_never_cut_silently(tmp_path: Path) -> None:
    veca.save(local_model(local_kernel=5), tmp_path)
    with pytest.raises(ValueError, match="would cut the model's convolution of side 5"):
        veca.load(tmp_path, local_kernel=3)


def test_only_tiny_mixes_locally_by_default() -> None:
    kernels = {name: config.local_kernel for name, config in veca.SIZES.items()}
    assert kernels == {"tiny": 3, "small": 0, "small-plus": 0, "base": 0, "large": 0}


def test_a_call_without_a_budget_asks_the_model_then_the_configuration() -> None:
    made = local_model(default_budget=4)
    assert made(images()).cores.shape[1] == made.num_prefix_tokens == 4
    made.budget = 2
    assert made(images()).cores.shape[1] == made.num_prefix_tokens == 2
    assert made(images(), budget=7).cores.shape[1] == 7
    assert local_model()(images()).cores.shape[1] == 8
