"""Saved activations of streamed models wait in host memory: their bits, their memory, what is
copied when, and what cannot be kept."""
import contextlib
import random
import threading
import time
import types

import pytest
import torch
from block_model import BlockModel
from torch.autograd.graph import saved_tensors_hooks

import spillway
from spillway.torch import OffloadedAdamW, _copies, offload_model

LARGEST = 102_400  # bytes of a block's hidden layer with 100 rows
BLOCK = 2 * LARGEST


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.inner = torch.nn.Linear(width, 2 * width)
        self.outer = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


def make(recomputes=False, accumulation_steps=1, **streamed):
    torch.manual_seed(1)
    model = BlockModel(Block, 8, 128, recomputes)
    if streamed:
        offload_model(model, "600KB", **streamed)
    return model, OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0,
                                 accumulation_steps=accumulation_steps)


def batch(step, rows=100):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps=3):
    losses = []
    for step in range(steps):
        loss = model(batch(step))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(there, here):
    assert there[0] == here[0]
    assert all(torch.equal(a, b) for a, b in zip(there[1], here[1], strict=True))


def activations_of(model):
    return model._spillway_streaming.activations


def saved_bytes(model):
    """Bytes that autograd saves beside parameters, each storage once."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda saved: saved):
        loss = model(batch(0))
    del loss
    return sum(sizes.values())


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("window", ["0", "120KB", None, "100MB"])
def test_they_leave_the_device_and_come_back(recomputes, window):
    resident, resident_optimizer = make(recomputes)
    total = saved_bytes(resident)
    streamed, optimizer = make(recomputes, activation_memory="4MB", activation_window=window)
    for _ in range(2):
        assert_same(train(streamed, optimizer), train(resident, resident_optimizer))
    activations = activations_of(streamed)
    assert activations.memory.most == pytest.approx(total, rel=0.1)
    assert activations.device_bytes == activations.memory.used == 0
    # What a node of autograd uses, and the window beside it.
    learned = total / 8 if recomputes else BLOCK + LARGEST
    ahead = {"0": 0, "120KB": 120_000, None: learned, "100MB": 0}[window]
    assert activations.most_device_bytes <= ahead + LARGEST
    assert (activations.most_device_bytes > 0) == (window != "100MB")  # where none leaves
    loss = streamed(batch(0))
    loss.backward(retain_graph=True)
    assert activations.memory.used > 0 == activations.device_bytes


@pytest.mark.parametrize("seed", range(4))
def test_bits_are_the_same_whenever_copies_take_place(monkeypatch, seed):
    """Two losses of one step, a graph that is dropped, and one that is used twice."""
    draw, move = random.Random(seed), _copies.move

    def move_late(target, source):
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(draw.choice((0, 0, 0.0005, 0.003)))
        move(target, source)

    monkeypatch.setattr(_copies, "move", move_late)
    results = []
    for streamed in ({}, {"activation_memory": "8MB", "activation_window": f"{100 * seed}KB"}):
        model, optimizer = make(accumulation_steps=None, **streamed)
        losses = []
        for step in range(3):
            first, second = model(batch(step)), model(batch(10 + step))
            dropped = model(batch(20 + step))
            (first - second).backward(retain_graph=True)
            del dropped
            first.backward()
            losses += [first.item(), second.item()]
            optimizer.step()
            optimizer.zero_grad()
        results.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert_same(*results)


@pytest.mark.parametrize("window", ["120KB", None])
def test_each_begins_to_come_back_before_what_is_needed_first(monkeypatch, window):
    def at_once(engine, target, source):
        _copies.move(target, source)
        return _copies.Started(lambda: True, lambda: None)

    monkeypatch.setattr(_copies.HostEngine, "start", at_once)
    model, optimizer = make(activation_memory="4MB", activation_window=window)
    activations, events = activations_of(model), []

    def note(name):
        call = getattr(activations, name)
        monkeypatch.setattr(activations, name, lambda kept: (
            events.append((name, kept.number)), call(kept))[1])

    loss = model(batch(0))
    note("_fetch")
    note("_bring")
    loss.backward()
    fetched = [number for name, number in events if name == "_fetch"]
    assert fetched == sorted(fetched, reverse=True)
    assert len(fetched) > 20
    for number in fetched:
        place = events.index(("_fetch", number))
        # Something is used in between, with which the copy runs.
        assert place < events.index(("_bring", number)) - 1 or events[place - 1][1] != number


def test_no_more_than_the_window_is_on_its_way(monkeypatch):
    gate = threading.Event()
    model, optimizer = make(activation_memory="4MB", activation_window="250KB")
    move = _copies.move
    monkeypatch.setattr(_copies, "move", lambda *ends: (gate.wait(), move(*ends)))
    passes = threading.Thread(target=lambda: model(batch(0)).backward())
    passes.start()
    activations, deadline = activations_of(model), time.monotonic() + 60

    def leaving():
        return sum(lanes.away.bytes for lanes in activations._lanes.values())

    try:
        while leaving() <= 250_000 - LARGEST:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.01)
        assert leaving() <= 250_000
        assert passes.is_alive()  # it waits for a copy
    finally:
        gate.set()
        passes.join()


def test_a_write_to_what_has_not_left_yet_is_refused_as_by_torch():
    class Writes(Block):
        def forward(self, x):
            h = torch.tanh(self.inner(self.norm(x)))  # backward of tanh needs its result
            y = self.outer(h)
            h.mul_(2)
            return x + y

    torch.manual_seed(1)
    model = BlockModel(Writes, 3, 128)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(batch(0)).backward()
    offload_model(model, "600KB", activation_memory="4MB", activation_window="100MB")
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-2)
    loss = model(batch(0))
    with pytest.raises(spillway.InvalidArgumentError, match="written in place soon after"):
        loss.backward()
    optimizer.close()


def test_a_pass_that_is_cut_off_takes_its_hooks_along():
    model, optimizer = make(activation_memory="4MB")
    lengths, inner = [], model.blocks[4].inner.forward
    for step in range(4):
        def cut_off(x):
            raise KeyboardInterrupt
        model.blocks[4].inner.forward = cut_off
        with pytest.raises(KeyboardInterrupt):
            model(batch(step))
        model.blocks[4].inner.forward = inner
        optimizer.zero_grad()
        other = torch.nn.Linear(4, 4096)(batch(step)).tanh().sum()  # of no model of ours
        assert activations_of(model).memory.used == 0
        other.backward()
        train(model, optimizer, 1)
        lengths.append(len(activations_of(model)._order))
    assert lengths[0] == lengths[-1]


def test_a_graph_that_nobody_goes_back_through_is_in_nobodys_way(monkeypatch):
    start = _copies.HostEngine.start

    def at_once(engine, target, source):
        started = start(engine, target, source)
        started.wait()
        return started

    monkeypatch.setattr(_copies.HostEngine, "start", at_once)
    model, optimizer = make(accumulation_steps=None, activation_memory="16MB",
                            activation_window="250KB")
    activations, brought = activations_of(model), []
    bring = activations._bring
    monkeypatch.setattr(activations, "_bring", lambda kept: (
        brought.append(kept.is_on_device()), bring(kept))[1])

    def ahead():
        """The share of tensors that a backward pass finds on the device."""
        brought.clear()
        model(batch(0)).backward()
        return sum(brought) / len(brought)

    alone = ahead()
    alive = [model(batch(step)) for step in range(2)]
    assert [ahead() for _ in range(3)] == [alone] * 3
    assert alone > 0.9
    assert sum(kept.host.nbytes for kept in activations._coming) <= 250_000
    del alive


class Spectral(torch.nn.Module):
    """Uses a weight as complex numbers."""

    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.filter = torch.nn.Parameter(torch.randn(width // 2, 2))

    def forward(self, x):
        h = torch.view_as_complex(self.inner(x).view(len(x), -1, 2))
        return x + torch.view_as_real(h * torch.view_as_complex(self.filter)).reshape(x.shape)


@pytest.mark.parametrize("streamed", [{}, {"activation_memory": "4MB"}])
def test_a_parameter_may_be_saved_as_another_type(streamed):
    results = []
    for offloads in (False, True):
        torch.manual_seed(1)
        model = BlockModel(Spectral, 4, 128)
        if offloads:
            offload_model(model, "600KB", **streamed)
        results.append(train(model, OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0)))
    assert_same(*results)


def test_they_stay_where_torch_cannot_say_who_takes_them(monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    with pytest.raises(spillway.NotSupportedError, match="activation_memory needs PyTorch 2.8"):
        make(activation_memory="4MB")
    make(device="cpu")  # without


def test_a_model_that_is_refused_stays_as_it_was():
    model = BlockModel(Block, 3, 128)
    with pytest.raises(spillway.InvalidArgumentError, match="no blocks were found"):
        offload_model(model, "600KB", blocks=[], activation_memory="4MB")
    assert "forward" not in vars(model)


def test_says_when_they_do_not_fit():
    model, optimizer = make(activation_memory="100KB")
    with pytest.raises(spillway.DoesNotFitError, match="activation_memory is 100000"):
        train(model, optimizer)
    model(batch(0, 1)).backward()  # whose tensors are small and stay
    with pytest.raises(spillway.InvalidArgumentError, match="there is no activation_memory"):
        offload_model(BlockModel(Block, 3, 128), "600KB", activation_window="1MB")


@pytest.mark.parametrize(("link", "device", "refusal"), [
    (0, "cpu", "host_link_gbps is 0; it is above 0"), (float("nan"), "cpu", "is nan"),
    (1.0, "cuda:0", "rehearsals on the CPU")])
def test_says_which_links_there_are_not(monkeypatch, link, device, refusal):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(spillway.InvalidArgumentError, match=refusal):
        offload_model(BlockModel(Block, 3, 128), "600KB", device=device, host_link_gbps=link)


def test_a_device_is_released_once_nothing_is_on_its_way():
    model, optimizer = make(activation_memory="8MB")
    model(batch(0))
    lanes = activations_of(model)._lanes.values()
    assert sum(each.away.bytes for each in lanes) > 0
    optimizer.release_device()
    assert sum(each.away.bytes + each.back.bytes for each in lanes) == 0


class Streams:
    """Stands for torch.cuda: what is launched on which stream, in order."""

    def __init__(self):
        self.log = []

    def Stream(self, device):  # noqa: N802
        return types.SimpleNamespace(
            wait_stream=lambda other: self.log.append(("side follows", other.name)),
            record_event=lambda: self._event())

    def _event(self):
        self.log.append(("event",))
        return types.SimpleNamespace(query=lambda: False, number=self.log.count(("event",)))

    def current_stream(self, device):
        return types.SimpleNamespace(
            name="current", wait_event=lambda event: self.log.append(("waits", event.number)))

    def stream(self, side):
        return contextlib.nullcontext()


def test_a_gpus_copies_follow_its_passes_and_hold_their_memory(monkeypatch):
    streams = Streams()
    monkeypatch.setattr(_copies.torch, "cuda", streams)
    lane = _copies.Lane(_copies.engine_of(torch.device("cuda", 0), None))
    pieces = [torch.full((100,), number, dtype=torch.uint8) for number in range(4)]
    targets = [torch.empty(100, dtype=torch.uint8) for _ in pieces]
    copies = [lane.start(target, piece, 250)
              for target, piece in zip(targets, pieces, strict=True)]
    launched = [("side follows", "current"), ("event",)]
    assert streams.log == [*launched, *launched, ("waits", 1), *launched, ("waits", 2), *launched]
    assert [copy.source is None for copy in copies] == [True, True, False, False]
    copies[3].is_wanted = False
    lane.release_unwanted()
    assert lane.bytes == 200  # no event has come
    for target, piece in zip(targets, pieces, strict=True):
        assert torch.equal(target, piece)
