"""Callbacks of the program that raise, and parts of the package's calls that do: the call can be
made again, and what comes is what a run has in which nothing raised."""
import pytest
import torch
from block_model import BlockModel

from spillway.torch import OffloadedAdamW, offload_model


class Raised(Exception):
    """What a callback raises."""


class Turn:
    """The callbacks of a run, of which one raises."""

    def __init__(self, successes):
        self.left = successes
        self.raised = False

    def comes(self, *_, **__):
        self.left -= 1
        if self.left == -1:
            self.raised = True
            raise Raised


class Rate:
    """A learning rate that the program computes."""

    def __init__(self, turn, rate):
        self.turn, self.rate = turn, rate

    def __float__(self):
        self.turn.comes()
        return self.rate


def parameters():
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(40, generator=generator).to(dtype))
            for dtype in (torch.bfloat16, torch.float32, torch.float32)]


def loss(tensors, number):
    return sum((tensor.float() * (number + place + 1)).sin().sum()
               for place, tensor in enumerate(tensors))


class Run:
    """Training that calls the program wherever it can."""

    def __init__(self, turn):
        self.turn, self.tensors = turn, parameters()
        for tensor in self.tensors:
            self.hook(tensor)
        self.optimizer = OffloadedAdamW(self.tensors, lr=1e-2, max_norm=1.0,
                                        accumulation_steps=None, threads=1)
        for tensor in self.tensors:
            self.hook(tensor)
        for register in ("step_pre", "state_dict_pre", "state_dict_post", "load_state_dict_pre",
                         "load_state_dict_post"):
            getattr(self.optimizer, f"register_{register}_hook")(turn.comes)

    def hook(self, tensor):
        tensor.register_hook(self.turn.comes)
        tensor.register_post_accumulate_grad_hook(self.turn.comes)

    def get_scale(self):
        self.turn.comes()
        return 2.0

    def call(self, function, *arguments):
        """Makes a call in which one callback may raise."""
        try:
            return function(*arguments)
        except Raised:
            return function(*arguments)

    def train(self, step):
        self.optimizer.param_groups[0]["lr"] = Rate(self.turn, 1e-2)

        def computed():
            self.optimizer.zero_grad()
            for micro in range(2):
                loss(self.tensors, 2 * step + micro).backward()
            self.turn.comes()

        if step == 0:
            self.call(self.optimizer.step, computed)
            return
        self.call(computed)
        self.call(self.optimizer.clip_grad_norm_, 0.5, self)
        self.call(self.optimizer.step)

    def run(self):
        for step in range(2):
            self.train(step)
            self.optimizer.param_groups[0]["lr"] = 1e-2
            state = self.call(self.optimizer.state_dict)
            self.call(self.optimizer.load_state_dict, state)
        states = self.call(self.optimizer.state_dict)["state"]
        return self.tensors + [states[number][key] for number in states for key in states[number]]


def expect_equal(some, others):
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other)


def test_a_call_whose_callback_raised_is_made_again():
    undisturbed = Run(Turn(1 << 62)).run()
    for successes in range(1000):
        turn = Turn(successes)
        numbers = Run(turn).run()
        if not turn.raised:
            break
        expect_equal(numbers, undisturbed)
    assert turn.left >= 0
    assert successes > 50


def trained(steps):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, lr=1e-2, accumulation_steps=None)
    for step in range(steps):
        loss(tensors, step).backward()
        optimizer.step()
    return tensors, optimizer


def test_a_state_that_a_hook_or_a_rate_refuses_changes_nothing():
    (usual, reference), (tensors, optimizer) = trained(2), trained(2)
    other = trained(1)[1]
    other.param_groups[0]["lr"] = 0.5
    hook = optimizer.register_load_state_dict_pre_hook(Turn(0).comes)
    with pytest.raises(Raised):
        optimizer.load_state_dict(other.state_dict())
    hook.remove()
    other.param_groups[0]["lr"] = "fast"
    with pytest.raises(ValueError, match="fast"):
        optimizer.load_state_dict(other.state_dict())
    for each, of in ((usual, reference), (tensors, optimizer)):
        loss(each, 9).backward()
        of.step()
    expect_equal(tensors, usual)


def test_a_hook_that_raises_after_a_state_was_loaded_leaves_it_whole_as_with_torch():
    (usual, reference), (tensors, optimizer) = trained(2), trained(2)
    other = trained(1)[1]
    reference.load_state_dict(other.state_dict())
    optimizer.register_load_state_dict_post_hook(Turn(0).comes)
    with pytest.raises(Raised):
        optimizer.load_state_dict(other.state_dict())
    for each, of in ((usual, reference), (tensors, optimizer)):
        loss(each, 9).backward()
        of.step()
    expect_equal(tensors, usual)


def test_a_clip_that_raised_clips_nothing():
    class Scaler:
        get_scale = Turn(0).comes

    (usual, reference), (tensors, optimizer) = trained(0), trained(0)
    for each, of in ((usual, reference), (tensors, optimizer)):
        loss(each, 9).backward()
        if of is optimizer:
            with pytest.raises(Raised):
                of.clip_grad_norm_(1e-3, Scaler())
        of.step()
    expect_equal(tensors, usual)


def test_a_gradient_that_could_not_be_handed_over_is_in_the_next_step():
    (usual, reference), (tensors, optimizer) = trained(0), trained(0)
    for each in (usual, tensors):
        loss(each, 0).backward()
    shard, index = optimizer._places[tensors[1]]
    whole, turn = shard._hand_over, Turn(0)

    def hand_over(at, gradient):
        if at == index:
            turn.comes()
        return whole(at, gradient)

    shard._hand_over = hand_over
    with pytest.raises(Raised):
        (tensors[1].sin().sum()).backward()
    usual[1].sin().sum().backward()
    for each in (reference, optimizer):
        each.step()
    expect_equal(tensors, usual)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


def test_a_block_whose_parameters_could_not_be_shown_is_entered_again():
    def made(streamed):
        torch.manual_seed(1)
        model = BlockModel(Block, 3, 16)
        if streamed:
            offload_model(model, "128KB")
        return model, OffloadedAdamW(model.parameters(), lr=1e-2, threads=1)

    def attempt(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).backward()

    resident = made(streamed=False)
    attempt(*resident)
    resident[1].step()
    for successes in range(100):
        model, optimizer = made(streamed=True)
        shard, turn = optimizer._shards[0], Turn(successes)

        def device_view(index, turn=turn, whole=shard.device_view):
            turn.comes()
            return whole(index)

        shard.device_view = device_view
        try:
            attempt(model, optimizer)
        except Raised:
            attempt(model, optimizer)
        optimizer.step()
        expect_equal(model.parameters(), resident[0].parameters())
        if not turn.raised:
            break
    assert successes == 12  # two parameters of three blocks, forward and backward
