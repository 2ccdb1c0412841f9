"""What a model can be called."""

import pytest

from veca.weights.format import is_hub_id


@pytest.mark.parametrize(
    ("name", "means_hub"),
    [
        ("owner/name", True),
        ("owner/name-v1.5_b", True),
        ("name", False),
        ("a/b/c", False),
        ("./name", False),
        ("/name", False),
        ("../name", False),
        ("owner/model.safetensors", False),
        ("owner/model.pt", False),
        ("owner/na me", False),
        ("owner/", False),
    ],
)
def test_a_name_on_the_hub_has_an_owner_and_is_no_file(name: str, means_hub: bool) -> None:
    assert is_hub_id(name) is means_hub
