"""Contenders do what their names say, and cost what they compute."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.analysis.made_up import TWIN, plain, veca
from veca.analysis.benchmark import Contender, Lineup, Setup
from veca.backbone.config import BackboneConfig

SMALL = BackboneConfig(
    layers=2, width=32, heads=2, patch_size=4, budgets=(2, 16), ffn_shares=(0.25, 1.0)
)
SETUP = Setup(backbone=SMALL, resolution=32, batch=2)
EVERYBODY = [veca(2), veca(16), veca(2, 0.25), plain(2), TWIN]


@pytest.mark.parametrize(
    ("contender", "name"),
    [
        (veca(8), "VECA, 8 cores"),
        (veca(1, 0.25), "VECA, 1 core, FFN 0.25"),
        (plain(8), "plain form, 8 cores"),
        (TWIN, "full attention"),
    ],
)
def test_a_contender_is_called_by_what_it_is(contender: Contender, name: str) -> None:
    assert contender.name == name


@torch.inference_mode()
def test_each_contender_encodes_with_its_own_model_and_mode() -> None:
    lineup = Lineup(SETUP)
    images = lineup.images
    torch.testing.assert_close(lineup.call(veca(2))().patches, lineup.veca(images, 2).patches)
    short = lineup.veca(images, 2, 0.25).patches
    torch.testing.assert_close(lineup.call(veca(2, 0.25))().patches, short)
    assert torch.equal(lineup.call(TWIN)().patches, lineup.twin(images).patches)


@torch.inference_mode()
def test_the_plain_form_runs_even_between_calls_of_the_folded_one() -> None:
    lineup = Lineup(SETUP)
    folded, unfolded = lineup.call(veca(2)), lineup.call(plain(2))
    counts = []
    for call in (folded, unfolded, folded):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            call()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[2] < counts[1]


@pytest.mark.parametrize("contender", EVERYBODY)
def test_gflops_are_those_that_torch_counts_for_one_image(contender: Contender) -> None:
    lineup = Lineup(replace(SETUP, batch=1))
    call = lineup.call(contender)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        counter = FlopCounterMode(display=False)
        with counter:
            call()
    assert lineup.work(contender).gflops * 1e9 == pytest.approx(counter.get_total_flops())


def test_attention_has_the_share_of_flops_that_feed_forward_parts_and_embedding_leave() -> None:
    lineup = Lineup(SETUP)
    for contender, tokens, units in ((veca(2), 66, 85), (TWIN, 65, 85), (plain(2), 66, 85)):
        work = lineup.work(contender)
        others = 2 * 64 * 32 * 48 + SMALL.layers * 6 * tokens * 32 * units
        steps = 0 if contender.kind == "twin" else 4 * 2 * 32
        expected = 1 - (others + steps) / (work.gflops * 1e9)
        assert work.attention_share == pytest.approx(expected)


def test_only_veca_at_a_small_budget_folds() -> None:
    lineup = Lineup(SETUP)
    assert [lineup.work(item).folded for item in EVERYBODY] == [True, False, True] + [False] * 2


def test_the_twin_has_the_same_blocks_and_one_class_token() -> None:
    twin = Lineup(SETUP).twin.config
    assert (twin.attention, twin.prefix_tokens, twin.ffn_shares) == ("full", 1, (1.0,))
    assert (twin.layers, twin.width, twin.heads) == (SMALL.layers, SMALL.width, SMALL.heads)


def test_the_seed_decides_images_and_weights_and_leaves_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (Lineup(replace(SETUP, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.images, same.images)
    assert not torch.equal(one.images, other.images)
    weights = [lineup.veca.patch_embedding.weight for lineup in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)
