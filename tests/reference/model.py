"""The models of the reference, from their published equations, on named HF tensors."""
import dataclasses
import math

import torch
from torch.nn import functional

from rounding import attention, narrow, store, store_gradient


@dataclasses.dataclass(frozen=True)
class Shape:
    family: str
    tied: bool
    rope: dict | None = None
    theta: float = 10000.0
    vocabulary: int = 83
    context: int = 32
    width: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 12
    ffn: int = 80
    eps: float = 1e-5
    pad: int | None = None

    @property
    def gpt2(self):
        return self.family == "gpt2"


def config_json(s):
    """config.json as transformers writes it."""
    if s.gpt2:
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": s.width,
                "n_head": s.heads, "n_layer": s.layers, "n_positions": s.context,
                "n_inner": s.ffn, "vocab_size": s.vocabulary, "layer_norm_epsilon": s.eps,
                "activation_function": "gelu_new", "tie_word_embeddings": s.tied}
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[s.family]
    config = {"architectures": [name + "ForCausalLM"], "model_type": s.family,
              "hidden_size": s.width, "num_hidden_layers": s.layers,
              "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
              "head_dim": s.head, "intermediate_size": s.ffn, "hidden_act": "silu",
              "max_position_embeddings": s.context, "vocab_size": s.vocabulary,
              "rms_norm_eps": s.eps, "rope_theta": s.theta, "tie_word_embeddings": s.tied}
    if s.rope:
        config["rope_scaling"] = s.rope
    if s.pad is not None:
        config["pad_token_id"] = s.pad
    return config


def tensor_shapes(s):
    if s.gpt2:
        shapes = {"transformer.wte.weight": (s.vocabulary, s.width),
                  "transformer.wpe.weight": (s.context, s.width)}
        for i in range(s.layers):
            linear = {"attn.c_attn": (s.width, 3 * s.width), "attn.c_proj": (s.width, s.width),
                      "mlp.c_fc": (s.width, s.ffn), "mlp.c_proj": (s.ffn, s.width)}
            for name, shape in linear.items():
                shapes[f"transformer.h.{i}.{name}.weight"] = shape
                shapes[f"transformer.h.{i}.{name}.bias"] = shape[1:]
            for name in ("ln_1", "ln_2"):
                shapes[f"transformer.h.{i}.{name}.weight"] = (s.width,)
                shapes[f"transformer.h.{i}.{name}.bias"] = (s.width,)
        shapes |= {"transformer.ln_f.weight": (s.width,), "transformer.ln_f.bias": (s.width,)}
        return shapes if s.tied else shapes | {"lm_head.weight": (s.vocabulary, s.width)}
    shapes = {"model.embed_tokens.weight": (s.vocabulary, s.width)}
    q, kv = s.heads * s.head, s.kv_heads * s.head
    for i in range(s.layers):
        at = f"model.layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, s.width)
            if s.family == "qwen2":
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        if s.family == "qwen3":
            shapes |= {f"{at}self_attn.{name}_norm.weight": (s.head,) for name in "qk"}
        shapes |= {f"{at}self_attn.o_proj.weight": (s.width, q),
                   f"{at}mlp.gate_proj.weight": (s.ffn, s.width),
                   f"{at}mlp.up_proj.weight": (s.ffn, s.width),
                   f"{at}mlp.down_proj.weight": (s.width, s.ffn),
                   f"{at}input_layernorm.weight": (s.width,),
                   f"{at}post_attention_layernorm.weight": (s.width,)}
    shapes["model.norm.weight"] = (s.width,)
    return shapes if s.tied else shapes | {"lm_head.weight": (s.vocabulary, s.width)}


def random_weights(s, generator):
    """Far from symmetric: norms are not ones and biases not zeros, so that each one counts."""
    def draw(name, shape):
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            return values / math.sqrt(s.width)
        return values * 0.1 + (1.0 if "norm" in name or ".ln_" in name
                               and name.endswith("weight") else 0.0)
    return {name: draw(name, shape) for name, shape in tensor_shapes(s).items()}


def inverse_frequencies(s):
    """fp32, as transformers computes them; Llama-3's bands from its paper's released code."""
    plain = 1.0 / s.theta ** (torch.arange(0, s.head, 2).float() / s.head)
    if not s.rope:
        return plain
    context, factor = s.rope["original_max_position_embeddings"], s.rope["factor"]
    low, high = s.rope["low_freq_factor"], s.rope["high_freq_factor"]
    result = []
    for frequency in plain.double().tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            result.append(frequency)
        elif wavelength > context / low:
            result.append(frequency / factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            result.append((1 - smooth) * frequency / factor + smooth * frequency)
    return torch.tensor(result, dtype=torch.float64).float()


def rotate(x, frequencies):
    """x [..., sequence, head], the rotate_half convention; cosine and sine are fp32 numbers."""
    angles = torch.arange(x.shape[-2]).float()[:, None] * frequencies[None, :]
    cosine, sine = (torch.cat([f(angles.double())] * 2, -1).float().to(x.dtype)
                    for f in (torch.cos, torch.sin))
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat([-high, low], -1) * sine


class Model:
    """forward(weights, tokens) -> logits; weights are leaves of the autograd graph."""

    def __init__(self, shape, dtype):
        self.shape = shape
        self.dtype = dtype
        self.frequencies = None if shape.gpt2 else inverse_frequencies(shape)

    def keep(self, x):
        """Stored, and its gradient too."""
        return store_gradient(store(x, self.dtype), self.dtype)

    def norm(self, x, weights, name):
        weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
        if bias is not None:
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.shape.eps) * weight
        return self.keep(x if bias is None else x + bias)

    def heads(self, rows, count, weights, norm):
        """[batch, count, sequence, head], normalized and rotated where the family does so."""
        s = self.shape
        x = rows.unflatten(-1, (count, s.head)).transpose(1, 2)
        if norm in weights:
            x = store_gradient(x, self.dtype)
            x = store(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + s.eps) * weights[norm],
                      self.dtype)
        if self.frequencies is None:
            return x
        return store(rotate(store_gradient(x, self.dtype), self.frequencies), self.dtype)

    def attend(self, q, k, v, weights, at):
        s = self.shape
        q = self.heads(q, s.heads, weights, at + "self_attn.q_norm.weight")
        k = self.heads(k, s.kv_heads, weights, at + "self_attn.k_norm.weight")
        v = v.unflatten(-1, (s.kv_heads, s.head)).transpose(1, 2)
        q = q.unflatten(1, (s.kv_heads, s.heads // s.kv_heads))
        out = attention(q, k[:, :, None], v[:, :, None], self.dtype)
        return store_gradient(out.flatten(1, 2).transpose(1, 2).flatten(2), self.dtype)

    def gpt2_layer(self, x, weights, i):
        at = f"transformer.h.{i}."

        def linear(name, rows):
            return rows @ weights[f"{at}{name}.weight"] + weights[f"{at}{name}.bias"]
        qkv = store(linear("attn.c_attn", self.norm(x, weights, at + "ln_1")), self.dtype)
        mixed = self.attend(*qkv.chunk(3, -1), weights, at)
        middle = self.keep(linear("attn.c_proj", mixed) + x)
        inner = self.keep(linear("mlp.c_fc", self.norm(middle, weights, at + "ln_2")))
        active = self.keep(functional.gelu(inner, approximate="tanh"))
        return self.keep(linear("mlp.c_proj", active) + middle)

    def llama_layer(self, x, weights, i):
        at = f"model.layers.{i}."

        def linear(name, rows):
            product = rows @ weights[f"{at}{name}.weight"].T
            bias = weights.get(f"{at}{name}.bias")
            return product if bias is None else product + bias
        normal = self.norm(x, weights, at + "input_layernorm")
        qkv = [store(linear(f"self_attn.{name}_proj", normal), self.dtype) for name in "qkv"]
        mixed = self.attend(*qkv, weights, at)
        middle = self.keep(linear("self_attn.o_proj", mixed) + x)
        normal = self.norm(middle, weights, at + "post_attention_layernorm")
        gate, up = (self.keep(linear(f"mlp.{name}_proj", normal)) for name in ("gate", "up"))
        active = self.keep(functional.silu(gate) * up)
        return self.keep(linear("mlp.down_proj", active) + middle)

    def logits(self, weights, tokens):
        """Logits stay fp32; the caller rounds their gradient."""
        if self.shape.gpt2:
            words = weights["transformer.wte.weight"]
            x = words[tokens] + weights["transformer.wpe.weight"][:tokens.shape[1]]
            layer, norm = self.gpt2_layer, "transformer.ln_f"
        else:
            words = weights["model.embed_tokens.weight"]
            # torch.nn.functional.embedding: the row of the padding token is a constant.
            x = functional.embedding(tokens, words, padding_idx=self.shape.pad)
            layer, norm = self.llama_layer, "model.norm"
        x = self.keep(x)
        for i in range(self.shape.layers):
            x = layer(x, weights, i)
        return self.norm(x, weights, norm) @ weights.get("lm_head.weight", words).T

    def backward(self, logits, targets, scale):
        """Sum of the losses; leaves get their gradients, times `scale`."""
        p = torch.softmax(logits.detach(), -1)
        loss = functional.cross_entropy(logits.detach().flatten(0, 1), targets.flatten(),
                                        reduction="sum")
        p.scatter_add_(-1, targets[..., None], torch.full_like(p[..., :1], -1.0))
        logits.backward(narrow(p * scale, self.dtype))
        return loss.item()
