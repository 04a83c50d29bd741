"""Passes of streamed models that raise: the batch is skipped, and training goes on with the bits of
a model that never had it."""
import pytest
import torch
from block_model import BlockModel

from spillway.torch import OffloadedAdamW, offload_model


class Raises(torch.autograd.Function):
    """Raises in its backward pass."""

    @staticmethod
    def forward(context, x, error):
        context.error = error
        return x.clone()

    @staticmethod
    def backward(context, _gradient):
        raise context.error


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.outer = torch.nn.Linear(width, width)
        self.inside = None  # what a test does in the middle

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        return x + self.outer(h if self.inside is None else self.inside(h))


def make(streamed, recomputes=False, deferred=False, frozen=()):
    torch.manual_seed(1)
    model = BlockModel(Block, 6, 64, recomputes)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    if streamed:
        offload_model(model, "300KB")
    parameters = [p for p in model.parameters() if p.requires_grad]
    return model, OffloadedAdamW(parameters, lr=1e-2, max_norm=1.0,
                                 deferred=model if deferred else None)


def batch(step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(step))


def homes(model):
    return [parameter.data_ptr() for parameter in model.parameters()]


def train(model, optimizer, step):
    before = homes(model)
    loss = model(batch(step))
    loss.backward()
    assert homes(model) == before  # where they are kept, and not on the device
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(),
                                                 strict=True))


def fail(model, place, failure):
    """Begins a step with a batch that raises in a block."""
    inside, kind = failure
    block = model.blocks[place]
    block.inside = inside
    with pytest.raises(kind):
        model(batch(99)).backward()
    block.inside = None


def interrupt(_):
    raise KeyboardInterrupt


def interrupt_while_it_recomputes(h):
    return h if torch._C._current_graph_task_id() == -1 else interrupt(h)


FAILURES = {
    "out of memory": (lambda h: Raises.apply(h, MemoryError()), MemoryError),
    "Ctrl-C": (lambda h: Raises.apply(h, KeyboardInterrupt()), KeyboardInterrupt),
    "Ctrl-C while it recomputes": (interrupt_while_it_recomputes, KeyboardInterrupt),
    "Ctrl-C in forward": (interrupt, KeyboardInterrupt),
}


@pytest.mark.parametrize("which", FAILURES)
@pytest.mark.parametrize("place", [0, 3, 5])
@pytest.mark.parametrize("deferred", [False, True])
def test_goes_on_with_the_bits_of_a_run_without_the_batch(which, place, deferred):
    recomputes = "recomputes" in which
    resident, resident_optimizer = make(False, recomputes)
    streamed, optimizer = make(True, recomputes, deferred)
    for step in range(4):
        assert train(resident, resident_optimizer, step) == train(streamed, optimizer, step)
        fail(streamed, place, FAILURES[which])
        if step % 2:  # an evaluation is next
            with torch.no_grad():
                assert resident(batch(7)) == streamed(batch(7))
        optimizer.zero_grad()
    optimizer.synchronize()
    assert same(resident, streamed)


def test_gradients_that_came_before_it_raised_count_in_a_step_as_in_torch():
    models = [make(streamed) for streamed in (False, True)]
    for step in range(3):
        for model, optimizer in models:
            train(model, optimizer, step)
            fail(model, 3, FAILURES["out of memory"])
            optimizer.step()
    assert same(models[0][0], models[1][0])


def test_state_is_read_and_written_next(tmp_path):
    # No gradient comes before it raises.
    models = [make(streamed, frozen=("head", "outer")) for streamed in (False, True)]
    uses = [
        lambda _, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
        lambda _, optimizer: optimizer.save(tmp_path / str(id(optimizer))),
        lambda _, optimizer: optimizer.load(tmp_path / str(id(optimizer))),
        lambda model, optimizer: optimizer.values_changed(model.blocks[2].inner.weight),
        lambda _, optimizer: optimizer.synchronize(),
    ]
    for step, use in enumerate(uses):
        for model, optimizer in models:
            train(model, optimizer, step)
            fail(model, 5, FAILURES["Ctrl-C"])
            use(model, optimizer)
    assert same(models[0][0], models[1][0])
