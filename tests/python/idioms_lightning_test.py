"""Idioms of Lightning and Fabric, where they are installed: pip install lightning."""
import importlib.util
import warnings

import pytest
import torch
from idioms import Batches, Net, Table, check, loss_of
from torch.nn import functional

table = Table()


def module_of(run, automatic):
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net, self.automatic_optimization = run.place(Net()), automatic

        def configure_optimizers(self):
            optimizer = run.make(self)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return {"optimizer": optimizer,
                    "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def training_step(self, rows, number):
            loss = functional.mse_loss(self.net(rows["x"]), rows["labels"])
            if self.automatic_optimization:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            optimizer.step()
            self.lr_schedulers().step()
            return None

    return Lit()


def fit(run, automatic=True, steps=4, resume=None, save=None, **more):
    """Trains and returns the network; begins with, and ends with, a checkpoint where it is told."""
    import lightning

    module = module_of(run, automatic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=run.folder,
            **more)
        trainer.fit(module, torch.utils.data.DataLoader(Batches(), batch_size=2), ckpt_path=resume)
        if save is not None:
            trainer.save_checkpoint(save)
    return module.net


@table.idiom()
def automatic(run):
    return fit(run)


@table.idiom()
def clipped_norms_and_accumulation(run):
    return fit(run, gradient_clip_val=0.1, accumulate_grad_batches=2)


@table.idiom()
def clipped_values(run):
    return fit(run, gradient_clip_val=1e-3, gradient_clip_algorithm="value")


@table.idiom()
def manual(run):
    return fit(run, automatic=False)


@table.idiom()
def mixed_bfloat16(run):
    return fit(run, precision="bf16-mixed")


@table.idiom()
def a_resume(run):
    file = run.folder / "lightning.ckpt"
    fit(run, save=file)
    return fit(run, steps=6, resume=file)


@table.idiom()
def fabric(run):
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    net, optimizer = fabric.setup(*run.net_and_optimizer())
    file, norms = run.folder / "fabric.ckpt", []
    for step in range(4):
        optimizer.zero_grad()
        fabric.backward(loss_of(net, step))
        norms.append(fabric.clip_gradients(net, optimizer, max_norm=0.1))
        optimizer.step()
        if step == 2:
            fabric.save(file, {"net": net, "optimizer": optimizer})
    fabric.load(file, {"net": net, "optimizer": optimizer})
    optimizer.zero_grad()
    loss_of(net, 5).backward()
    optimizer.step()
    return net.module, norms


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None,
                    reason="Lightning is not installed")
@table.over_all()
def test_lightning(row, setting, tmp_path):
    check(row, setting, tmp_path)
