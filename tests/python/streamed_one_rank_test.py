"""A group of one rank whose model is streamed: the bits of a model that stays. It runs in this
process, and so on the emulated GPU too."""
import pytest
import torch
import torch.distributed as dist
from quantized_layers import KINDS
from quantized_test import BUDGET, equal, trained
from quantized_test import make as quantized
from quantized_test import train as train_adapters
from streaming_test import batch, freeze, model_of_blocks, same, train

from spillway.torch import OffloadedAdamW, offload_model


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    path = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def make(group=None, dtype=torch.float32, deferred=False, **options):
    torch.manual_seed(1)
    model = freeze(model_of_blocks().to(dtype))
    if group is not None:
        offload_model(model, "800KB")
        options["process_group"] = group
    return model, OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0,
                                 deferred=model if deferred else None, **options)


@pytest.mark.parametrize("dtype, options", [
    (torch.float32, {}), (torch.float32, {"deferred": True}),
    (torch.bfloat16, {"state_format": "split"})])
def test_a_rank_has_the_bits_of_a_model_that_stays(group, dtype, options):
    stays, of_stays = make(dtype=dtype, **{**options, "deferred": False})
    streamed, optimizer = make(group, dtype, **options)
    for step in range(2):
        assert train(stays, of_stays, [step]) == train(streamed, optimizer, [step])
        with torch.no_grad():
            for model in (stays, streamed):
                model.blocks[5].inner.weight.mul_(0.5)
                model.blocks[1].outer.mul_(0.5)
                model.head.weight.mul_(0.5)
                model(batch(7).to(dtype))
    optimizer.synchronize()
    assert same(stays, streamed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_has_the_bits_of_a_quantized_base_that_stays(group, kind):
    stays, streamed = quantized(kind), quantized(kind)
    offload_model(streamed, BUDGET)
    expected = train_adapters(stays, OffloadedAdamW(trained(stays), lr=1e-2), range(3))
    equal(expected, train_adapters(
        streamed, OffloadedAdamW(trained(streamed), lr=1e-2, process_group=group), range(3)))
    equal([trained(stays)], [trained(streamed)])
