"""Fine-tunes a model with the Trainer of transformers; the optimizer state lies on disk.

usage: huggingface_trainer.py [FOLDER]      (the disk of this folder; a temporary one)

A tiny random model stands for AutoModelForCausalLM.from_pretrained(...), and letters for tokens.
"""
import pathlib
import sys
import tempfile

import transformers

from spillway.huggingface import SpillwayTrainer

TEXT = " ".join(f"{number} times {number} is {number * number}." for number in range(400))


def main(folder: pathlib.Path) -> None:
    letters = list(TEXT.encode())
    data = [{"input_ids": letters[start:start + 64], "labels": letters[start:start + 64]}
            for start in range(0, len(letters) - 64, 64)]
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4))
    args = transformers.TrainingArguments(
        output_dir=str(folder / "run"), use_cpu=True, learning_rate=1e-2, num_train_epochs=2,
        per_device_train_batch_size=4, max_grad_norm=1.0, save_strategy="epoch", logging_steps=20,
        report_to=[])
    trainer = SpillwayTrainer(model=model, args=args, train_dataset=data,
                              spillway={"nvme": [folder]})
    result = trainer.train()
    assert result.training_loss < 4, "it has not learned"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(pathlib.Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(pathlib.Path(temporary))
