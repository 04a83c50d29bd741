"""Tiny mixtures of experts: of the families of transformers, and one with a list of experts."""
import torch
from transformers import AutoConfig, AutoModelForCausalLM

#: Of all models.
_SIZES = {"vocab_size": 48, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
          "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
          "tie_word_embeddings": False}
#: Of those of DeepSeek: their attention, shared experts, and a first layer without experts.
_LATENT = {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
           "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
           "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
           "v_head_dim": 16}

#: By family; `output_router_logits` adds the auxiliary loss of the router.
FAMILIES = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                  "head_dim": 16, "output_router_logits": True},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "output_router_logits": True},
    "deepseek_v2": {**_LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v3": _LATENT,
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True},
}


def tiny(family, implementation):
    """A model of a family, always with the same parameters."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **_SIZES, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config).train()
    model.set_experts_implementation(implementation)
    return model


def tokens(step):
    """A batch of few tokens, so that some experts have none."""
    return torch.randint(0, 48, (1, 3), generator=torch.Generator().manual_seed(step))


class _Layer(torch.nn.Module):
    """Adds what the best two of its experts make of each token, and what one makes of all."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(64, 8, bias=False)
        self.shared = torch.nn.Linear(64, 64, bias=False)
        self.experts = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.SiLU(),
                                torch.nn.Linear(128, 64, bias=False)) for _ in range(8))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        routed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                routed = routed.index_add(0, token, expert(x[token]) * weights[token, place, None])
        return x + routed + self.shared(x)


class ListOfExperts(torch.nn.Module):
    """A model whose experts are modules of a list, and are called where they have tokens, as in
    models that come with code of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = torch.nn.Embedding(48, 64)
        self.layers = torch.nn.ModuleList(_Layer() for _ in range(4))
        self.head = torch.nn.Linear(64, 48)

    def forward(self, batch):
        x = self.embedding(batch[0])
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x), batch[0])
