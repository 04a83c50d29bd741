"""Linear layers that keep 4 or 8 bits of a weight, each in the way of a kind of quantizer, for
tests without the packages of these."""
import types

import torch


def quantized(weight, levels=15):
    """Codes of a weight, and the scale and the zero of each row."""
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    scale = (high - low) / levels
    return ((weight - low) / scale).round().to(torch.uint8), scale, low


class Recomputed(torch.autograd.Function):
    """Keeps what dequantizes a weight, as an attribute of its context, and not the weight."""

    @staticmethod
    def forward(ctx, x, dequantize):
        ctx.dequantize = dequantize
        return x @ dequantize().t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.dequantize(), None


class Kept(torch.autograd.Function):
    """Keeps tensors of the layer, and a view of one, as attributes of its context."""

    @staticmethod
    def forward(ctx, x, codes, state):
        ctx.tensors, ctx.state = (None, codes), state
        return x @ (codes.t() * state.scale + state.zero).t()

    @staticmethod
    def backward(ctx, gradient):
        codes = ctx.tensors[1]
        return gradient @ (codes.t() * ctx.state.scale + ctx.state.zero), None, None


class Layer(torch.nn.Module):
    """Notes where its bytes are when it computes."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def note(self, *tensors):
        self.seen |= {tensor.data_ptr() for tensor in tensors}


class Buffers(Layer):
    """Two codes in a byte, in buffers."""

    def __init__(self, weight):
        super().__init__()
        codes, scale, zero = quantized(weight)
        self.register_buffer("qweight", (codes[:, ::2] << 4) | codes[:, 1::2])
        self.register_buffer("scales", scale)
        self.register_buffer("zeros", zero)

    def forward(self, x):
        self.note(self.qweight, self.scales, self.zeros)
        codes = torch.stack([self.qweight >> 4, self.qweight & 15], dim=-1).flatten(1)
        return torch.nn.functional.linear(x, codes * self.scales + self.zeros)


class Dictionary(Layer):
    """Codes in a parameter, and tensors in a dict of dicts."""

    def __init__(self, weight):
        super().__init__()
        codes, scale, zero = quantized(weight)
        self.W_q = torch.nn.Parameter(codes, requires_grad=False)
        self.meta = {"scale": scale, "nested": {"zeros": [zero]}, "bits": 4}

    def dequantize(self):
        self.note(self.W_q, self.meta["scale"], self.meta["nested"]["zeros"][0])
        return self.W_q * self.meta["scale"] + self.meta["nested"]["zeros"][0]

    def forward(self, x):
        return Recomputed.apply(x, self.dequantize)


class CodesParameter(torch.nn.Parameter):
    """Has a state, as the parameters of bitsandbytes."""

    def __new__(cls, codes, state):
        self = torch.Tensor._make_subclass(cls, codes, False)
        self.quant_state = state
        return self


State = type("QuantState", (types.SimpleNamespace,), {"__module__": "bitsandbytes.functional"})
SHARED = torch.arange(16, dtype=torch.float32)  # that layers have in common


class StateOfParameter(Layer):
    """Codes in a parameter of a class of its own, whose state has the rest."""

    def __init__(self, weight):
        super().__init__()
        codes, scale, zero = quantized(weight)
        state = State(scale=scale, zero=zero, code=SHARED)
        self.weight = CodesParameter(codes, state)

    def forward(self, x):
        state = self.weight.quant_state
        self.note(self.weight, state.scale, state.zero)
        assert torch.equal(state.code, SHARED)
        return Kept.apply(x, self.weight.t(), state)


class Twice(Layer):
    """Codes in a parameter, and once more in the same memory, as the 8 bits of bitsandbytes."""

    def __init__(self, weight):
        super().__init__()
        codes, scale, zero = quantized(weight, 255)
        self.weight = torch.nn.Parameter(codes, requires_grad=False)
        self.state = {"CB": self.weight.data, "scale": scale, "zero": zero}

    def forward(self, x):
        self.note(self.weight, self.state["scale"])
        assert self.state["CB"].data_ptr() == self.weight.data_ptr()
        return Recomputed.apply(x, self.dequantize)

    def dequantize(self):
        return self.state["CB"] * self.state["scale"] + self.state["zero"]


class Codes(torch.Tensor):
    """A weight that looks like one of floats, and keeps its bytes in tensors of its own."""

    @staticmethod
    def __new__(cls, codes, scale, zero, seen):
        return torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=scale.dtype, device=codes.device)

    def __init__(self, codes, scale, zero, seen):
        self.codes, self.scale, self.zero, self.seen = codes, scale, zero, seen

    def __tensor_flatten__(self):
        return ["codes", "scale", "zero"], self.seen

    @classmethod
    def __tensor_unflatten__(cls, inner, seen, size, stride):
        return cls(inner["codes"], inner["scale"], inner["zero"], seen)

    def dequantized(self):
        self.seen |= {self.codes.data_ptr(), self.scale.data_ptr(), self.zero.data_ptr()}
        return self.codes * self.scale + self.zero

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), keywords=None):
        if function is torch.nn.functional.linear:
            return Wrapped.apply(*arguments[:2])
        return super().__torch_function__(function, kinds, arguments, keywords or {})

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), keywords=None):
        if function is torch.ops.aten.detach.default:
            (self,) = arguments
            return cls(self.codes.detach(), self.scale, self.zero, self.seen)
        raise NotImplementedError(function)


class Wrapped(torch.autograd.Function):
    """Saves the wrapper of codes."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.dequantized().t()

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        assert type(weight) is Codes
        return gradient @ weight.dequantized(), None


class Wrapper(Layer):
    """Codes in a tensor that is a wrapper of others."""

    kind = Codes

    def __init__(self, weight):
        super().__init__()
        codes = self.kind(*quantized(weight), self.seen)
        self.weight = torch.nn.Parameter(codes, requires_grad=False)

    def forward(self, x):
        assert isinstance(self.weight, torch.nn.Parameter) and self.weight.seen is self.seen
        return torch.nn.functional.linear(x, self.weight)


class SavedCodes(Codes):
    """Codes that torch itself saves for backward, turned."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), keywords=None):
        if function is torch.ops.aten.t.default:
            (self,) = arguments
            return cls(self.codes.t(), self.scale.t(), self.zero.t(), self.seen)
        if function is torch.ops.aten.mm.default:
            return arguments[0] @ arguments[1].dequantized()
        return super().__torch_dispatch__(function, kinds, arguments, keywords)


class SavedWrapper(Wrapper):
    kind = SavedCodes


KINDS = [Buffers, Dictionary, StateOfParameter, Twice, Wrapper, SavedWrapper]
