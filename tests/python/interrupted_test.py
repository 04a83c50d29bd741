"""A signal within a step: all parameters have made it, or none has."""
import signal

import pytest
import torch

from spillway.torch import OffloadedAdamW

SIGNALS = {"Ctrl-C": (signal.SIGINT, KeyboardInterrupt),
           "a deadline": (signal.SIGALRM, TimeoutError)}


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(40, dtype=dtype))
            for dtype in (torch.bfloat16, torch.float32, torch.float16)]


def give_gradients(tensors, step):
    generator = torch.Generator().manual_seed(step)
    for tensor in tensors:
        tensor.grad = torch.randn(40, generator=generator).to(tensor.dtype)


def too_late(*_):
    raise TimeoutError


@pytest.fixture(autouse=True)
def handlers():
    before = signal.signal(signal.SIGALRM, too_late)
    yield
    assert signal.signal(signal.SIGALRM, before) is too_late
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("which", SIGNALS)
@pytest.mark.parametrize("at", range(3))
def test_a_step_of_several_types_is_made_by_all(which, at):
    number, kind = SIGNALS[which]
    usual, tensors = parameters(), parameters()
    reference, optimizer = OffloadedAdamW(usual), OffloadedAdamW(tensors)
    for step in range(4):
        give_gradients(usual, step)
        reference.step()
        give_gradients(tensors, step)
        shard = optimizer._shards[at]
        if step == 2:

            def interrupted(*arguments, whole=shard.step):
                done = whole(*arguments)
                signal.raise_signal(number)  # as soon as this part has made the step
                return done

            shard.step = interrupted
            with pytest.raises(kind):
                optimizer.step()
            del shard.step
        else:
            optimizer.step()
        for tensor, expected in zip(tensors, usual, strict=True):
            assert torch.equal(tensor, expected)
    assert optimizer.grad_norm == reference.grad_norm
    assert [shard.trainer.updates for shard in optimizer._shards] == [4, 4, 4]


def test_an_interrupt_before_the_update_is_no_step():
    tensors = parameters()
    before = [tensor.detach().clone() for tensor in tensors]
    optimizer = OffloadedAdamW(tensors)
    give_gradients(tensors, 0)
    register = optimizer._register

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        register()

    optimizer._register = interrupted
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert all(torch.equal(tensor, value) for tensor, value in zip(tensors, before, strict=True))
    del optimizer._register
    optimizer.step()
    assert not any(torch.equal(tensor, value) for tensor, value in zip(tensors, before,
                                                                      strict=True))
