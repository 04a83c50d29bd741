#!/usr/bin/env python3
"""Tensors of PyTorch and NumPy cross the C interface as DLPack, and train as with torch's AdamW.

usage: dlpack_test.py LIBRARY
"""
import ctypes
import sys

import numpy
import torch

FP32, BF16, FP16 = range(3)
python = ctypes.pythonapi
python.PyCapsule_GetName.restype = ctypes.c_char_p
python.PyCapsule_GetName.argtypes = [ctypes.py_object]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

library = ctypes.CDLL(sys.argv[1])
library.spillway_last_message.restype = ctypes.c_char_p


class Tensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("dtype", ctypes.c_int32), ("device", ctypes.c_int32),
                ("device_index", ctypes.c_int32), ("data", ctypes.c_void_p),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("dimensions", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class Group(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("optimizer", ctypes.c_int32), ("lr", ctypes.c_double),
                ("beta1", ctypes.c_double), ("beta2", ctypes.c_double), ("eps", ctypes.c_double),
                ("weight_decay", ctypes.c_double), ("decay_mode", ctypes.c_int32),
                ("bias_correction", ctypes.c_int32)]


def message() -> str:
    return library.spillway_last_message().decode()


def must(status: int) -> None:
    assert status == 0, message()


def from_capsule(capsule: object) -> tuple[int, Tensor]:
    """The status of the conversion, and the tensor. dl_tensor is the first member of the structure
    without a version, and comes behind 32 bytes in the one with a version."""
    name = python.PyCapsule_GetName(capsule)
    behind = {b"dltensor": 0, b"dltensor_versioned": 32}[name]
    address = python.PyCapsule_GetPointer(capsule, name) + behind
    tensor = Tensor(size=ctypes.sizeof(Tensor))
    status = library.spillway_tensor_from_dlpack(ctypes.c_void_p(address), ctypes.byref(tensor))
    return status, tensor


def check_kinds() -> None:
    kinds = ((torch.float32, FP32), (torch.bfloat16, BF16), (torch.float16, FP16))
    for capsule_of in (lambda t: t.__dlpack__(), lambda t: t.__dlpack__(max_version=(1, 0))):
        for dtype, number in kinds:
            source = torch.arange(12.0).to(dtype).reshape(1, 3, 4)[:, 1:]
            capsule = capsule_of(source)
            status, tensor = from_capsule(capsule)
            must(status)
            assert (tensor.dtype, tensor.device, tensor.dimensions) == (number, 1, 3)
            assert tensor.shape[:3] == [1, 2, 4] and tensor.data == source.data_ptr()
        transposed = capsule_of(torch.zeros(3, 4).t())
        assert from_capsule(transposed)[0] == 1 and "contiguous" in message(), message()
        integers = capsule_of(torch.zeros(3, dtype=torch.int32))
        assert from_capsule(integers)[0] == 1 and "code 0, 32 bits" in message(), message()
    array = numpy.ones((2, 5), numpy.float32)
    capsule = array.__dlpack__(max_version=(1, 0))
    status, tensor = from_capsule(capsule)
    must(status)
    assert tensor.data == array.ctypes.data and tensor.shape[:2] == [2, 5]


def check_null_pointers() -> None:
    tensor = Tensor(size=ctypes.sizeof(Tensor))
    assert library.spillway_tensor_from_dlpack(None, ctypes.byref(tensor)) == 1
    assert "the DLTensor is a null pointer" in message(), message()
    capsule = torch.zeros(3).__dlpack__()
    status, tensor = from_capsule(capsule)
    must(status)
    assert library.spillway_tensor_to_dlpack(ctypes.byref(tensor), None, None) == 1
    assert "the DLTensor is a null pointer" in message(), message()


def as_torch(tensor: Tensor) -> torch.Tensor:
    """The values as a tensor of torch, which owns nothing: no deleter is called."""
    managed = ctypes.create_string_buffer(64)
    strides = (ctypes.c_int64 * tensor.dimensions)()
    must(library.spillway_tensor_to_dlpack(ctypes.byref(tensor), strides, managed))
    capsule = python.PyCapsule_New(ctypes.addressof(managed), b"dltensor", None)
    result = torch.from_dlpack(capsule)
    result.keep = managed, strides, capsule
    return result


def check_training() -> None:
    torch.manual_seed(1)
    start = torch.randn(7, 5)
    ours = ctypes.c_void_p()
    must(library.spillway_create(ctypes.byref(ours)))
    group = Group(ctypes.sizeof(Group), 0, 0.01, 0.9, 0.999, 1e-8, 0.1, 0, 1)
    must(library.spillway_add_group(ours, ctypes.byref(group), None))
    capsule = start.__dlpack__()
    _, tensor = from_capsule(capsule)
    must(library.spillway_add_parameter(ours, b"weight", 0, ctypes.byref(tensor), None))
    must(library.spillway_start(ours, None))
    must(library.spillway_values(ours, 0, ctypes.byref(tensor)))
    values = as_torch(tensor)
    assert torch.equal(values, start)

    weight = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
    for _ in range(20):
        weight.grad = torch.randn(7, 5)
        capsule = weight.grad.__dlpack__(max_version=(1, 0))
        _, gradient = from_capsule(capsule)
        must(library.spillway_gradient_ready(ours, 0, ctypes.byref(gradient), 0, None))
        must(library.spillway_step(ours, None, None))
        optimizer.step()
    # Each step rounds a weight of at most 4 twice at most: 2 * 2^-23 * 20.
    torch.testing.assert_close(values, weight.detach(), rtol=0, atol=5e-6)
    must(library.spillway_destroy(ours))


check_kinds()
check_null_pointers()
check_training()
print("DLPack of PyTorch and NumPy, with and without a version")
