"""Parameters that are CUDA tensors. Stand-ins for torch's streams, and for what the trainer does on
a GPU, show what is handed over and when a gradient may be freed. gpu_check.py trains on a GPU."""
import contextlib
import ctypes
import types

import pytest
import torch

import spillway
from spillway._load import native
from spillway.torch import OffloadedAdamW, _registration, _shard, offload_model
from spillway.torch._activations import HostMemory
from spillway.torch._device import Gpu

STREAM = 77


class LateTrainer:
    """Reads gradients as late as it may: with the next but one, or where the step ends."""

    def __init__(self, options, parameters, frozen):
        assert (options.device, options.device_index) == ("cuda", 3)
        options.device = "host"
        self._trainer = native.Trainer(options, parameters, frozen)
        self._waiting = {}
        self.streams = []

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    def add_device_gradient(self, index, address, size, stream):
        self.streams.append(stream)
        if len(self._waiting) == 2 or index in self._waiting:
            self._read(next(iter(self._waiting)))
        self._waiting[index] = (address, size)

    def _read(self, index):
        address, size = self._waiting.pop(index)
        gradient = torch.frombuffer((ctypes.c_float * (size // 4)).from_address(address),
                                    dtype=torch.float32).clone()
        self._trainer.add_gradient(index, gradient)

    def reads_gradient(self, index):
        return index in self._waiting

    def _read_all(self):
        for index in list(self._waiting):
            self._read(index)

    def step(self, divisor, max_norm, stream, grad_norm):
        self.streams.append(stream)
        self._read_all()
        return self._trainer.step(divisor, max_norm, None, grad_norm)

    def discard_gradients(self):
        self._read_all()
        self._trainer.discard_gradients()

    def take_values(self, index, stream, changed):
        self.streams.append(stream)
        self._trainer.take_values(index, changed=changed)


@pytest.fixture
def gpu(monkeypatch):
    """Makes CPU tensors pass for those of GPU 3; gives the trainers that are made."""
    trainers = []

    def make(*arguments):
        trainers.append(LateTrainer(*arguments))
        return trainers[-1]

    monkeypatch.setattr(_shard, "native", types.SimpleNamespace(
        Trainer=make, release_freed_memory=native.release_freed_memory,
        leaf_parameters=native.leaf_parameters))
    monkeypatch.setattr(_shard, "device_of", lambda place: Gpu(3))
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream",
                        lambda index: types.SimpleNamespace(cuda_stream=STREAM))
    return trainers


def train(model, steps=4, **arguments):
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0, **arguments)
    passes = arguments.get("accumulation_steps", 1)
    for step in range(steps):
        for number in range(passes):
            torch.manual_seed(10 * step + number)
            model(torch.randn(8, 16)).square().mean().backward()
            spoil = [torch.full((16, 16), float("nan")) for _ in range(20)]
            del spoil  # whatever was freed too early
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def model_of(width=16):
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6)))


@pytest.mark.parametrize("passes", (1, 3))
def test_gradients_are_kept_until_they_are_read(gpu, monkeypatch, passes):
    late = train(model_of(), accumulation_steps=passes)
    streams = gpu[0].streams
    monkeypatch.undo()
    for there, here in zip(late, train(model_of(), accumulation_steps=passes), strict=True):
        assert torch.equal(there, here)
    # Every gradient and every step say which stream they follow.
    assert streams == [STREAM] * (4 * (12 * passes + 1))


def test_gradients_are_freed_once_they_are_read(gpu):
    model = model_of()
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-2)
    device = optimizer._shards[0]._device
    model(torch.randn(2, 16)).sum().backward()
    assert len(device._held) <= 3
    optimizer.step()
    assert not device._held
    model(torch.randn(2, 16)).sum().backward()
    optimizer.zero_grad()
    assert not device._held


def test_values_that_the_program_writes_are_taken_behind_its_stream(gpu):
    model = model_of()
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-2)
    with torch.no_grad():
        model[0].weight.zero_()
    optimizer.values_changed(model[0].weight)
    assert gpu[0].streams == [STREAM]
    master = optimizer._shards[0].read(0, True, False, False, _shard.in_memory)[0]
    assert not master.any()


def test_a_parameter_that_moves_to_another_device_is_refused():
    model = model_of()
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-2)
    optimizer._shards[0]._memory[0] = torch.empty(16, 16, device="meta")
    with pytest.raises(spillway.InvalidArgumentError, match="on meta when .* on cpu"):
        optimizer.values_changed(model[0].weight)


def test_what_no_trainer_keeps_moves_to_the_gpu(monkeypatch):
    model = model_of()
    model.register_buffer("scale", torch.ones(2))
    model.none = torch.nn.Parameter(torch.empty(0, 5))
    moved = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, place: moved.append(
        (tensor.shape, str(place))) or tensor)
    offload_model(model, "1MB", device="cuda:2")
    assert moved == [((2,), "cuda:2"), ((0, 5), "cuda:2")]
    assert _registration.place_of(model[0].weight) == torch.device("cuda:2")  # its trainer's


class Runtime:
    """CUDA's runtime as torch has it, which pins nothing."""

    def __init__(self):
        self.pinned = {}  # sizes by address
        self.current = []
        self.status = 0

    def cudaHostRegister(self, address, size, flags):
        assert (address % 4096, flags) == (0, 0)
        self.pinned[address] = size
        return self.status

    def cudaHostUnregister(self, address):
        ctypes.string_at(address, self.pinned.pop(address))  # the pages are still there


@pytest.fixture
def runtime(monkeypatch):
    runtime = Runtime()

    def check(status):
        if status:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", check)
    monkeypatch.setattr(torch.cuda, "device",
                        lambda device: contextlib.nullcontext(runtime.current.append(device)))
    return runtime


@pytest.mark.parametrize("size", (5000, (64 << 20) + 1))
def test_saved_activations_pin_as_much_memory_as_they_take(runtime, size):
    gpu = torch.device("cuda", 3)
    memory = HostMemory(2 * size)
    piece = memory.take(size, gpu)
    assert runtime.pinned == {piece.data_ptr(): size} and piece.nbytes == size
    assert runtime.current == [gpu]
    piece[-1] = 7
    memory.give_back(piece)
    again = memory.take(size, gpu)
    assert again.data_ptr() == piece.data_ptr() and len(runtime.pinned) == 1
    view = again[10:]
    del piece, again
    assert len(runtime.pinned) == 1
    assert view[-1] == 7
    del view
    assert not runtime.pinned


def test_memory_that_cannot_be_pinned_is_not_unpinned(runtime):
    runtime.status = 2
    with pytest.raises(RuntimeError, match="out of memory"):
        HostMemory(10000).take(5000, torch.device("cuda", 0))
    assert len(runtime.pinned) == 1


def test_says_which_devices_there_are():
    with pytest.raises(spillway.NotSupportedError, match="device is mps: there are cpu, and cuda"):
        offload_model(model_of(), "1MB", device="mps")
    if not torch.cuda.is_available():
        with pytest.raises(spillway.NotSupportedError, match="device is cuda, and torch finds no"):
            offload_model(model_of(), "1MB", device="cuda")


def test_the_trainer_itself():
    options = native.TrainerOptions()
    assert (options.device, options.device_index) == ("host", 0)
    with pytest.raises(spillway.InvalidArgumentError, match='no device "tpu"'):
        options.device = "tpu"
    options.groups = [native.Group()]
    options.dtype = "fp32"
    values = torch.zeros(5)
    trainer = native.Trainer(options, [("p", 0, values, None)])
    with pytest.raises(spillway.InvalidArgumentError, match="make it for cuda"):
        trainer.add_device_gradient(0, values.data_ptr(), values.nbytes, STREAM)
    assert not trainer.reads_gradient(0)
