"""The loop of a public GAN script for DeepSpeed, with two engines and the import changed, beside
the same loop of torch alone."""
import pytest
import torch
from torch import nn

import spillway.torch as deepspeed

BATCH, NOISE = 4, 6


def weights_init(layer):
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(layer.weight, 0.0, 0.02)
    elif isinstance(layer, nn.BatchNorm2d):
        nn.init.normal_(layer.weight, 1.0, 0.02)
        nn.init.zeros_(layer.bias)


def networks():
    torch.manual_seed(999)
    maker = nn.Sequential(nn.ConvTranspose2d(NOISE, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8),
                          nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())
    critic = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
                           nn.Conv2d(8, 1, 4, 1, 0, bias=False), nn.Sigmoid())
    return maker.apply(weights_init), critic.apply(weights_init)


class Alone:
    """A network and its optimizer of torch, with the calls of an engine."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.zero_grad, self.step = self.optimizer.zero_grad, self.optimizer.step

    def __call__(self, inputs):
        return self.model(inputs)

    def backward(self, loss):
        loss.backward()


def offloaded(model, **more):
    config = {"train_batch_size": BATCH, "optimizer": {
        "type": "Adam", "params": {"lr": 2e-3, "betas": [0.5, 0.999]}}, **more}
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def train(make, steps=4):
    """The loop of training/gan of DeepSpeedExamples, with images of noise."""
    maker, critic = networks()
    of_maker, of_critic = make(maker), make(critic)
    criterion, losses = nn.BCELoss(), []
    torch.manual_seed(1)
    for _ in range(steps):
        of_critic.zero_grad()
        real = torch.randn(BATCH, 1, 8, 8)
        label = torch.full((BATCH,), 1.0)
        of_real = criterion(of_critic(real).view(-1), label)
        of_critic.backward(of_real)
        fake = of_maker(torch.randn(BATCH, NOISE, 1, 1))
        label.fill_(0.0)
        of_fake = criterion(of_critic(fake.detach()).view(-1), label)
        of_critic.backward(of_fake)
        of_critic.step()
        of_maker.zero_grad()
        label.fill_(1.0)
        of_both = criterion(of_critic(fake).view(-1), label)
        of_maker.backward(of_both)
        of_maker.step()
        losses += [of_real.item(), of_fake.item(), of_both.item()]
    return losses, [*maker.parameters(), *critic.parameters()]


@pytest.mark.parametrize("disk", [False, True])
def test_a_gan_of_two_engines_has_the_losses_of_torch(disk, tmp_path):
    more = {"zero_optimization": {"stage": 2, "offload_optimizer": {
        "device": "nvme", "nvme_path": str(tmp_path)}}} if disk else {}
    theirs, expected = train(Alone)
    ours, found = train(lambda model: offloaded(model, **more))
    assert ours == pytest.approx(theirs, rel=1e-5)
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)
