"""Mixtures of experts whose layers pass through a part of the device: losses, gradients and updates
are those of models that stay there."""
import pytest
import torch
from expert_models import FAMILIES, ListOfExperts, tiny, tokens

from spillway.torch import OffloadedAdamW, offload_model


def adamw(model, **options):
    return OffloadedAdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **options)


def loss_of(model, step):
    if isinstance(model, ListOfExperts):
        return model(tokens(step))
    return model(input_ids=tokens(step), labels=tokens(step)).loss


def gradients_of(model):
    return {name: None if parameter.grad is None else parameter.grad.clone()
            for name, parameter in model.named_parameters()}


def train(model, optimizer):
    """Five steps; returns the losses, and the gradients of each step."""
    losses, gradients = [], []
    for step in range(5):
        loss = loss_of(model, step)
        loss.backward()
        losses.append(loss.item())
        gradients.append(gradients_of(model))
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients


def same(some, others):
    """Whether two lists of tensors by name are equal, with None in the same places."""
    return some.keys() == others.keys() and all(
        (one is None) == (other is None) and (one is None or torch.equal(one, other))
        for one, other in zip(some.values(), others.values(), strict=True))


def streamed(model, share, blocks=None):
    """The model, of which the device has room for a share."""
    size = sum(each.nbytes for each in model.parameters())
    return offload_model(model, int(share * size), blocks and blocks(model))


def check_equal(make, share=0.66, blocks=None, **options):
    """Compares a streamed model with one of torch alone, and with one whose parameters stay."""
    plain, resident, model = make(), make(), streamed(make(), share, blocks)
    loss_of(plain, 0).backward()
    expected = train(resident, adamw(resident, **options))
    losses, gradients = train(model, adamw(model, **options))
    assert same(gradients[0], gradients_of(plain))
    assert losses == expected[0]
    assert all(map(same, gradients, expected[1]))
    assert same(dict(model.state_dict()), dict(resident.state_dict()))
    return gradients


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_bits_of_a_resident_model(family, implementation):
    gradients = check_equal(lambda: tiny(family, implementation))
    # An expert without tokens has a gradient of zeros, for its parameters are those of all experts.
    fused = [gradient for name, gradient in gradients[0].items() if "experts.down_proj" in name]
    assert any(not expert.any() for gradient in fused for expert in gradient)


def experts_of(model):
    return [expert for layer in model.layers for expert in layer.experts]


@pytest.mark.parametrize(("share", "blocks"), [(0.66, None), (0.25, experts_of)])
@pytest.mark.parametrize("missing", ["skip", "zero"])
def test_experts_of_a_list_have_the_bits_of_resident_ones(missing, share, blocks):
    gradients = check_equal(ListOfExperts, share, blocks, missing=missing)
    idle = [gradient is None for name, gradient in gradients[0].items() if ".experts." in name]
    assert any(idle) and not all(idle)
