"""Where Spillway's arithmetic rounds to 16 bits, said once for the reference.

Products, norms and softmax sum in fp32 whatever the compute type; what is stored between them, and
the gradients that flow back through the same places, has the compute type. The reference computes
in fp64 (or fp32, to see what the order of sums is worth) and rounds at those places only.
"""
import torch

TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def narrow(x, dtype):
    """x as it is after a store in `dtype` (None: fp32, which the reference does not imitate)."""
    return x if dtype is None else x.to(torch.float32).to(dtype).to(x.dtype)


def parameters_of(masters, dtype):
    """The parameters that the device sees: bf16 ties go away from zero, fp16 ties to even."""
    if dtype is not torch.bfloat16:
        return narrow(masters, dtype)
    bits = masters.to(torch.float32).view(torch.int32)
    return ((bits + 0x8000) & -0x10000).view(torch.float32).to(masters.dtype)


class _Store(torch.autograd.Function):
    @staticmethod
    def forward(context, x, dtype):
        return narrow(x, dtype)

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class _StoreGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x, dtype):
        context.dtype = dtype
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return narrow(gradient, context.dtype), None


def store(x, dtype):
    """Rounds the value; its gradient passes as it is."""
    return _Store.apply(x, dtype)


def store_gradient(x, dtype):
    """Rounds the gradient on its way back, once, however many uses of x it comes from."""
    return _StoreGradient.apply(x, dtype)


class _Attention(torch.autograd.Function):
    """Causal attention; backward forms the probabilities again and reads the stored output."""

    @staticmethod
    def forward(context, q, k, v, dtype):
        p = probabilities(q, k)
        out = narrow(p @ v, dtype)
        context.save_for_backward(q, k, v, p, out)
        context.dtype = dtype
        return out

    @staticmethod
    def backward(context, gradient):
        q, k, v, p, out = context.saved_tensors
        d_p = gradient @ v.transpose(-1, -2)
        d_scores = p * (d_p - (gradient * out).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        d_q = d_scores @ k
        # The heads of a group share k and v: [batch, kv_heads, group, sequence, head_dim].
        d_k = (d_scores.transpose(-1, -2) @ q).sum(2, keepdim=True)
        d_v = (p.transpose(-1, -2) @ gradient).sum(2, keepdim=True)
        return (*(narrow(d, context.dtype) for d in (d_q, d_k, d_v)), None)


def probabilities(q, k):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    length = q.shape[-2]
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(unseen, float("-inf")), -1)


def attention(q, k, v, dtype):
    """q [batch, kv_heads, group, sequence, head_dim]; k and v have a group of 1."""
    return _Attention.apply(q, k, v, dtype)
