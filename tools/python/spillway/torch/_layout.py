"""Tensors in one piece whose dimensions lie in memory in another order, such as channels_last."""
from __future__ import annotations

import torch

Order = tuple[int, ...] | None  #: dimensions from the outermost in memory on; None: as they are


def order_of(tensor: torch.Tensor) -> Order:
    """Returns the order of a tensor's dimensions in memory; None also where it is not in one piece,
    so that a copy in order takes its place."""
    if tensor.is_contiguous():
        return None
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)))
    return order if tensor.permute(order).is_contiguous() else None


def flattened(tensor: torch.Tensor, order: Order) -> torch.Tensor:
    """Returns the elements in this order: a view where they lie so."""
    whole = (tensor if order is None else tensor.permute(order)).contiguous()
    return whole.as_strided((whole.numel(),), (1,))  # a single one may have any stride


def shaped(flat: torch.Tensor, like: torch.Tensor, order: Order) -> torch.Tensor:
    """Returns the elements in the shape of the tensor whose order that is, and with its strides."""
    if order is None and not like.is_contiguous():
        return flat.view(like.shape)
    return flat.as_strided(like.shape, like.stride(), flat.storage_offset())


def name_with(name: str, order: Order) -> str:
    """Returns a name under which checkpoints keep the elements, so that no other order loads
    them."""
    return name if order is None else f"{name} in memory order {order}"
