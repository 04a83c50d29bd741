"""Tiny models, texts and Trainers of transformers that tests share."""
import torch
import transformers

TEXT = "".join(f"Blessed are they that mourn, for line {i * i % 97}.\n" for i in range(60))
SHAPE = {"vocab_size": 128, "bos_token_id": 0, "eos_token_id": 0}
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def llama(width=32, layers=2):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=64, **SHAPE))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, **SHAPE))


def examples():
    """Windows of the text, whose first eight targets are masked."""
    data = [min(byte, 127) for byte in TEXT.encode()]
    windows = [data[start:start + 48] for start in range(0, len(data) - 48, 48)]
    return [{"input_ids": window, "labels": [-100] * 8 + window[8:]} for window in windows]


def make(kind, model, folder, steps=6, arguments=None, kind_of_arguments=None, **more):
    """A Trainer of `kind`. `arguments` come before those of here."""
    # The last step of an epoch gets fewer micro-batches than the others.
    args = (kind_of_arguments or transformers.TrainingArguments)(**{
        "output_dir": str(folder), "use_cpu": True, "max_steps": steps, "logging_steps": 1,
        "report_to": [], "save_strategy": "steps", "save_steps": 4, "seed": 7,
        "lr_scheduler_type": "cosine", "disable_tqdm": True, "learning_rate": 1e-2,
        "weight_decay": 0.1, "max_grad_norm": 0.5, "gradient_accumulation_steps": 3,
        "per_device_train_batch_size": 4, **(arguments or {})})
    return kind(**{"model": model, "args": args, "train_dataset": examples(), **more})


def train(trainer, **more):
    trainer.train(**more)
    return [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history
            if "loss" in entry]


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def seeded(make_model):
    torch.manual_seed(1)
    return make_model()


def tokenizer():
    """Letters are tokens."""
    import tokenizers

    letters = {chr(code): code for code in range(1, 127)} | {"<pad>": 127, "<eos>": 0}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>",
                                                eos_token="<eos>", unk_token="<pad>")
