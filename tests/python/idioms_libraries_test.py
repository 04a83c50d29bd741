"""Idioms of libraries that make the training loop, or a part of it."""
import accelerate
import peft
import torch
import transformers
from idioms import RESIDENT, Batches, Net, Table, check, loss_of, train
from torch.nn import functional

from spillway.huggingface import SpillwayTrainer

table = Table()


class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": functional.mse_loss(out, labels), "logits": out}


# accelerate.

def accelerated(run, clip):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    net, optimizer = run.net_and_optimizer()
    loader = torch.utils.data.DataLoader(Batches(), batch_size=2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    norms = []
    for rows in loader:
        with accelerator.accumulate(net):
            accelerator.backward(functional.mse_loss(net(rows["x"]), rows["labels"]))
            if accelerator.sync_gradients and clip is not None:
                norms.append(clip(accelerator, net))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(net), norms, schedule.get_last_lr()[0]


@table.idiom()
def accelerate_and_clip_norms(run):
    return accelerated(run, lambda a, net: a.clip_grad_norm_(net.parameters(), 0.1))


@table.idiom()
def accelerate_and_clip_values(run):
    return accelerated(run, lambda a, net: a.clip_grad_value_(net.parameters(), 1e-3))


@table.idiom()
def accelerate_and_save_the_state(run):
    accelerator = accelerate.Accelerator(cpu=True)
    net, optimizer = accelerator.prepare(*run.net_and_optimizer())
    for step in range(4):
        optimizer.zero_grad()
        accelerator.backward(loss_of(net, step))
        optimizer.step()
        if step == 1:
            accelerator.save_state(run.folder / "accelerate", safe_serialization=False)
    accelerator.load_state(run.folder / "accelerate")
    for step in range(2, 4):
        optimizer.zero_grad()
        accelerator.backward(loss_of(net, step))
        optimizer.step()
    return net


# transformers and PEFT.

@table.idiom()
def schedule_of_transformers(run):
    net, optimizer = run.net_and_optimizer()
    schedule = transformers.get_scheduler("cosine", optimizer, num_warmup_steps=2,
                                          num_training_steps=6)
    rates = []
    for step in range(5):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    return net, rates


def arguments(run, **more):
    return transformers.TrainingArguments(**{
        "output_dir": str(run.folder / "trainer"), "use_cpu": True, "max_steps": 3,
        "report_to": [], "save_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-2,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1,
        "weight_decay": 0.1, **more})


@table.idiom(settings=("memory", "disk", "deferred"))
def trainer_of_transformers(run):
    torch.manual_seed(0)
    net = WithLoss(Net())
    if not run.is_ours:
        transformers.Trainer(model=net, args=arguments(run), train_dataset=Batches()).train()
        return net
    options = {"nvme": [run.folder]} if run.setting == "disk" else {}
    SpillwayTrainer(model=net, args=arguments(run), train_dataset=Batches(),
                    spillway={**options, "deferred": run.setting == "deferred"}).train()
    return net


@table.idiom()
def trainer_that_is_given_an_optimizer(run):
    torch.manual_seed(0)
    net = WithLoss(run.place(Net()))
    optimizer = run.make(net, **({"accumulation_steps": None} if run.setting in RESIDENT else {}))
    transformers.Trainer(model=net, args=arguments(run), train_dataset=Batches(),
                         optimizers=(optimizer, None)).train()
    return net


@table.idiom()
def adapters_of_peft(run):
    torch.manual_seed(0)
    net = peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["linear"],
                                                     modules_to_save=["head"]))
    run.place(net)
    optimizer = run.make(net)
    train(net, optimizer, steps=3)
    return peft.get_peft_model_state_dict(net)


@table.idiom(settings=RESIDENT)
def merged_adapters_of_peft(run):
    torch.manual_seed(0)
    net = peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["linear"]))
    optimizer = run.make(net)
    train(net, optimizer, steps=3)
    return net.merge_and_unload()


@table.over_all()
def test_libraries(row, setting, tmp_path):
    check(row, setting, tmp_path)
