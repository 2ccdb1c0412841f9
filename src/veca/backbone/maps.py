"""What a core takes from each token, measured by what arrives (paper, appendix A.9).

A weight alone misleads: a token with a small value contributes little however much of it is taken.
So the map of core i holds the norms of the vectors that token j adds to it,

    e_ij = sum over heads h of A_hij (v_hj W_o,h),      s_ij = |e_ij| / sum over j' of |e_ij'|.

The norms come from the H x H inner products of a token's head contributions, so that the (C, T, D)
vectors are never made.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from veca.backbone.attention import Attention


def contribution_shares(
    attention: Attention, tokens: Float[Tensor, "B T D"], weights: Float[Tensor, "B H C T"]
) -> Float[Tensor, "B C T"]:
    """Shares of tokens in what each core reads; they sum to one over tokens.

    Norms are taken in fp32 also where the model computes in bf16.
    """
    values = attention.heads(attention.value(tokens))  # (B, T, H, K)
    per_head = attention.output.weight.unflatten(1, (attention.config.heads, -1))  # (D, H, K)
    added = torch.einsum("bthk,dhk->bthd", values, per_head).float()
    with torch.autocast(added.device.type, enabled=False):
        products = added @ added.transpose(-1, -2)  # (B, T, H, H)
        mixed = torch.einsum("bhct,bthg->bgct", weights.float(), products)
    squared_norms = (mixed * weights.float()).sum(dim=1)
    norms = squared_norms.clamp(min=0).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)
