"""A head multiplies, adds, and never tells a class that it has not learned."""

import torch

from veca.probe.heads import LinearHead


def test_scores_are_those_of_a_linear_layer() -> None:
    layer = torch.nn.Linear(5, 3)
    head = LinearHead(weight=layer.weight.detach(), bias=layer.bias.detach())
    features = torch.randn(7, 5)
    torch.testing.assert_close(head.scores(features), layer(features).detach())
    torch.testing.assert_close(head.probabilities(features).sum(dim=1), torch.ones(7))


def test_scores_are_computed_in_the_precision_of_the_weights() -> None:
    head = LinearHead(weight=torch.eye(2, dtype=torch.float64), bias=torch.zeros(2).double())
    assert head.scores(torch.ones(1, 2, dtype=torch.float16)).dtype == torch.float64


def test_a_class_with_the_bias_minus_infinity_is_never_told() -> None:
    head = LinearHead(weight=torch.zeros(2, 1), bias=torch.tensor([-torch.inf, -1e30]))
    features = torch.randn(9, 1)
    assert head.scores(features).argmax(dim=1).tolist() == [1] * 9
    assert head.probabilities(features)[:, 0].tolist() == [0] * 9
