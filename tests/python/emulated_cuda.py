"""A plugin of pytest: parameters of optimizers are on an emulated GPU, and where a module tests
`offload_model`, or Trainers that call it, models are streamed through it.

The extension is the one that is built on the emulated CUDA (tests/support/cuda_emulation). Its
device memory can be read by the host, so that torch's CPU tensors stand for CUDA tensors in it:
torch computes at once, and what a GPU would do late is done late on the framework's stream. That
is where gradients come into being, where parameters are read again when the pass of their unit is
over or a step begins, and where gradients that torch has freed are overwritten. It is the default
stream, as torch's is, of the second of two GPUs, while the first one is current. A test's name
chooses the order of the streams.
"""
import contextlib
import ctypes
import importlib.util
import mmap
import os
import sys
import types
import weakref
import zlib

import pytest
import torch

spec = importlib.util.spec_from_file_location("spillway._native", os.environ["SPILLWAY_EMULATED"])
native = importlib.util.module_from_spec(spec)
sys.modules["spillway._native"] = native
spec.loader.exec_module(native)

# After the extension.
from spillway.torch import _device, _registration, _shard, streaming  # noqa: E402

ORDERS = (0, 7, 8)  # late, and two seeds
PINNED = 256 << 20
TO_DEVICE, FROM_DEVICE = 1, 2  # cudaMemcpyKind
CUDA = 2                       # a device of DLPack
GPU = 1
NativeTrainer = native.Trainer
library = ctypes.CDLL(native.__file__)


def call(name, *arguments):
    """Calls a function of CUDA's runtime. Whole numbers are addresses and sizes."""
    status = getattr(library, name)(*(ctypes.c_void_p(argument) if isinstance(argument, int)
                                      else argument for argument in arguments))
    assert status == 0, f"{name} returns {status}"


@contextlib.contextmanager
def current(index):
    """Makes a GPU current on this thread, as torch.cuda.device does."""
    before = ctypes.c_int()
    call("cudaGetDevice", ctypes.byref(before))
    call("cudaSetDevice", ctypes.c_int(index))
    try:
        yield
    finally:
        call("cudaSetDevice", before)


class Framework:
    """What torch would do on the GPU, on its default stream."""

    def __init__(self):
        library._ZN14cuda_emulation11set_devicesEi(ctypes.c_int(GPU + 1))
        default_stream = library._ZN14cuda_emulation14default_streamEi
        default_stream.restype = ctypes.c_void_p
        self.stream = default_stream(ctypes.c_int(GPU))
        self._pinned = mmap.mmap(-1, PINNED)
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._pinned))
        call("cudaHostRegister", self._first, PINNED, ctypes.c_uint(0))
        self._used = 0
        self._read = []  # where a value of the device will be, and what it is now

    def _take(self, size):
        first, self._used = self._first + self._used, self._used + (size + 63) // 64 * 64
        assert self._used <= PINNED, "a test needs more pinned memory"
        return first

    def _copy(self, target, source, size, kind):
        call("cudaMemcpyAsync", target, source, size, ctypes.c_int(kind), self.stream)

    def gradient(self, tensor):
        """Returns a tensor in the device's memory, which gets its elements late and loses them
        after it was freed."""
        size = tensor.nbytes
        address, source = ctypes.c_void_p(), self._take(size)
        with current(GPU):
            call("cudaMalloc", ctypes.byref(address), size)
        ctypes.memmove(source, tensor.data_ptr(), size)
        self._copy(address.value, source, size, TO_DEVICE)
        there = torch.frombuffer((ctypes.c_byte * size).from_address(address.value),
                                 dtype=tensor.dtype).view(tensor.shape)
        weakref.finalize(there, call, "cudaMemsetAsync", address.value, ctypes.c_int(0xff), size,
                         self.stream)
        return there

    def read_late(self, address, size):
        """Reads memory of the device when the stream comes to it."""
        target = self._take(size)
        self._read.append((target, ctypes.string_at(address, size)))
        self._copy(target, address, size, FROM_DEVICE)

    def finish(self):
        """Checks what was read."""
        call("cudaStreamSynchronize", self.stream)
        read, self._read, self._used = self._read, [], 0
        for number, (target, expected) in enumerate(read):
            assert ctypes.string_at(target, len(expected)) == expected, f"late read {number}"


class Trainer:
    """A native trainer, beside which the framework still reads parameters that it takes back."""

    def __init__(self, options, parameters, frozen):
        self._trainer = NativeTrainer(options, parameters, frozen)
        self._on_gpu = options.device == "cuda"
        self._entered = []
        # What a deferred update may be writing when the next step begins is not read.
        self._read_in_step = range(0 if options.defers_updates else len(parameters))
        self._find_staying()

    def _find_staying(self):
        kept = map(self._trainer.values, self._read_in_step)
        self._staying = [(tensor.data_ptr(), tensor.nbytes) for tensor in (
            to_tensor(array) for array in kept if array.__dlpack_device__()[0] == CUDA)]

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    @property
    def updates(self):
        return self._trainer.updates

    @updates.setter
    def updates(self, updates):
        self._trainer.updates = updates

    def _noted(self, array):
        if self._on_gpu:
            self._entered.append(to_tensor(array))
        return array

    def device_values(self, parameter):
        return self._noted(self._trainer.device_values(parameter))

    def device_frozen(self, frozen):
        return self._noted(self._trainer.device_frozen(frozen))

    def leave(self, unit, stream):
        for tensor in self._entered:
            framework.read_late(tensor.data_ptr(), tensor.nbytes)
        self._entered.clear()
        self._trainer.leave(unit, stream)

    def resume_device(self):
        self._trainer.resume_device()
        self._find_staying()

    def step(self, divisor, max_norm, stream, grad_norm):
        for address, size in self._staying:
            framework.read_late(address, size)
        try:
            return self._trainer.step(divisor, max_norm, stream, grad_norm)
        finally:
            if self._staying:
                framework.finish()  # before the program writes there


class Gpu(_device.Gpu):
    def add_gradient(self, trainer, index, gradient):
        super().add_gradient(trainer, index, framework.gradient(gradient))


def to_tensor(array, of_torch=torch.from_dlpack):
    """Returns a CPU tensor that has the memory of an array, which may be one of the GPU."""
    if not hasattr(array, "__dlpack_device__") or array.__dlpack_device__()[0] != CUDA:
        return of_torch(array)
    capsule = array.__dlpack__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # A DLTensor begins with its address and the kind of its device; this one is the CPU.
    ctypes.c_int32.from_address(get_pointer(capsule, b"dltensor") + 8).value = 1
    return of_torch(capsule)


framework = Framework()


@pytest.fixture(autouse=True)
def emulated_gpu(request, monkeypatch):
    order = ORDERS[zlib.crc32(request.node.name.encode()) % len(ORDERS)]
    library._ZN14cuda_emulation9set_orderEm(ctypes.c_uint64(order))
    monkeypatch.setattr(torch, "from_dlpack", to_tensor)
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.cuda, "current_stream",
                        lambda index: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(_device, "Gpu", Gpu)
    monkeypatch.setattr(_shard.native, "Trainer", Trainer)
    # Buffers are where torch computes (device_test.py).
    monkeypatch.setattr(streaming.Streaming, "move_buffers", lambda self, device: None)
    take = streaming.offload_model

    def offload(*args, **kwargs):
        with monkeypatch.context() as there:
            there.setattr(torch.cuda, "is_available", lambda: True)
            return take(*args, **{**kwargs, "device": f"cuda:{GPU}"})

    if hasattr(request.module, "Offloaded"):
        from spillway import _trainer_streaming
        monkeypatch.setattr(_trainer_streaming, "offload_model", offload)
    elif hasattr(request.module, "offload_model"):
        monkeypatch.setattr(request.module, "offload_model", offload)
    else:
        monkeypatch.setattr(_registration, "place_of", lambda parameter: torch.device("cuda", GPU))
    yield
    framework.finish()
