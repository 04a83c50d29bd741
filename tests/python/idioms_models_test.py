"""Idioms of training loops: what is trained, averages and copies of models."""
import copy
import io

import torch
from idioms import RESIDENT, Net, Table, batch, check, loss_of, train
from torch.nn import functional
from torch.optim import swa_utils

import spillway

table = Table()
STREAMED = ("streamed",)
CANNOT_BE_COPIED = (spillway.NotSupportedError, "an offloaded model cannot be pickled or copied")


# What is trained, by which group and optimizer.

@table.idiom()
def freeze_and_unfreeze(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    net.head.requires_grad_(False)
    train(net, optimizer)
    net.head.requires_grad_(True)
    train(net, optimizer)
    return net


@table.idiom(refused=(spillway.NotSupportedError, "is trained since the optimizer was made"),
             where=STREAMED)
def unfreeze_what_was_frozen(run):
    net = run.net()
    for p in net.blocks.parameters():
        p.requires_grad = False
    train(net, optimizer := run.make(net))
    for p in net.blocks[-1].parameters():
        p.requires_grad = True
    train(net, optimizer, steps=3)
    return net


@table.idiom(settings=RESIDENT)
def unfreeze_by_a_new_group(run):
    net = run.net()
    net.blocks.requires_grad_(False)
    optimizer = run.make(net, filter(lambda p: p.requires_grad, net.parameters()))
    train(net, optimizer)
    for block in reversed(net.blocks):
        block.requires_grad_(True)
        optimizer.add_param_group({"params": block.parameters(), "lr": 1e-3})
        train(net, optimizer)
    return net


@table.idiom()
def no_decay_for_biases_and_norms(run):
    net = run.net()
    decay = [p for p in net.parameters() if p.dim() >= 2]
    rest = [p for p in net.parameters() if p.dim() < 2]
    train(net, run.make(net, [{"params": decay, "weight_decay": 0.1},
                              {"params": rest, "weight_decay": 0.0}]), steps=3)
    return net


@table.idiom()
def a_rate_for_each_layer(run):
    net = run.net()
    optimizer = run.make(net, [{"params": layer.parameters(), "lr": 1e-2 * 0.5 ** depth}
                               for depth, layer in enumerate((net.head, *net.blocks, net.first))])
    train(net, optimizer, steps=3)
    return net


@table.idiom()
def named_parameters(run):
    net = run.net()
    train(net, run.make(net, net.named_parameters()), steps=2)
    return net


@table.idiom(settings=RESIDENT)
def several_optimizers_of_one_model(run):
    net = run.net()
    one = run.make(net, net.first.parameters(), kind="SGD", momentum=0.9)
    two = run.make(net, [*net.blocks.parameters(), *net.head.parameters()])
    for step in range(3):
        one.zero_grad()
        two.zero_grad()
        loss_of(net, step).backward()
        one.step()
        two.step()
    return net


@table.idiom()
def unused_parameters(run):
    torch.manual_seed(0)
    net = Net()
    net.unused = torch.nn.Linear(3, 3)
    run.place(net)
    train(net, run.make(net), steps=3)
    return net


@table.idiom()
def a_layer_that_is_left_out_at_times(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(4):
        optimizer.zero_grad()
        x = net.first(batch(step)[0])
        for number, block in enumerate(net.blocks):
            if step % 3 != number:
                x = block(x)
        functional.mse_loss(net.head(x), batch(step)[1]).backward()
        optimizer.step()
    return net


@table.idiom(settings=RESIDENT)
def mixed_dtypes(run):
    net = run.net()
    net.head.bfloat16()
    net.head.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
    train(net, run.make(net), steps=1)
    return [p.float() for p in (*net.first.parameters(), *net.blocks.parameters())]


@table.idiom(settings=RESIDENT)
def tied_weights(run):
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({"in": torch.nn.Embedding(12, 8, padding_idx=0),
                               "out": torch.nn.Linear(8, 12, bias=False)})
    net["out"].weight = net["in"].weight
    optimizer = run.make(net)
    tokens = torch.tensor([[0, 3, 5, 7, 3], [1, 2, 0, 0, 9]])
    for _ in range(3):
        optimizer.zero_grad()
        scores = net["out"](net["in"](tokens)).flatten(0, 1)
        functional.cross_entropy(scores, tokens.flatten(), ignore_index=0).backward()
        optimizer.step()
    return net


def lazy(run, early):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Tanh(), torch.nn.LazyLinear(4))
    if early:
        net(batch(0)[0])
    train(net, run.make(net))
    return net


@table.idiom(settings=RESIDENT)
def a_lazy_layer(run):
    return lazy(run, early=True)


@table.idiom(settings=RESIDENT, refused=(
    spillway.NotSupportedError, "parameter 0 of group 0 has no shape yet.*run a forward pass"))
def a_lazy_layer_that_has_no_shape_yet(run):
    return lazy(run, early=False)


# Averages and copies of models.

@table.idiom()
def moving_average_by_hand(run):
    net, optimizer = run.net_and_optimizer()
    average = Net()
    average.load_state_dict(net.state_dict())
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        with torch.no_grad():
            for kept, p in zip(average.parameters(), net.parameters(), strict=True):
                kept.lerp_(p, 0.1)
    return net, average


@table.idiom()
def moving_average_of_state_dicts(run):
    net, optimizer = run.net_and_optimizer()
    shadow = {name: value.clone() for name, value in net.state_dict().items()}
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        for name, p in net.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * p.data
    backup = {name: p.detach().clone() for name, p in net.named_parameters()}
    net.load_state_dict(shadow)
    loss = loss_of(net, 9).item()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(backup[name])
    train(net, optimizer, first=3)
    return net, loss, shadow


def averaging(run, **arguments):
    net, optimizer = run.net_and_optimizer()
    averaged = swa_utils.AveragedModel(net, **arguments)
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        averaged.update_parameters(net)
    with torch.no_grad():
        return net, averaged, averaged(batch(9)[0])


@table.idiom(refused=CANNOT_BE_COPIED, where=STREAMED)
def averaged_model(run):
    return averaging(run, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))


@table.idiom(refused=CANNOT_BE_COPIED, where=STREAMED)
def averaged_model_of_a_function(run):
    return averaging(run, avg_fn=lambda kept, new, _: 0.9 * kept + 0.1 * new)


@table.idiom(settings=RESIDENT)
def stochastic_weight_averaging(run):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(),
                              torch.nn.Linear(8, 4))
    optimizer = run.make(net, kind="SGD", momentum=0.9)
    averaged = swa_utils.AveragedModel(net)
    schedule = swa_utils.SWALR(optimizer, anneal_epochs=2, swa_lr=0.005)
    for step in range(4):
        train(net, optimizer, steps=1, first=step)
        averaged.update_parameters(net)
        schedule.step()
    swa_utils.update_bn([batch(step)[0] for step in range(3)], averaged)
    return net, averaged, optimizer.param_groups[0]["lr"]


@table.idiom()
def target_network(run):
    net = run.net()
    target = Net()
    target.load_state_dict(net.state_dict())
    optimizer = run.make(net)
    for step in range(4):
        x, reward = batch(step)
        with torch.no_grad():
            wanted = reward + 0.9 * target(x)
        optimizer.zero_grad()
        functional.smooth_l1_loss(net(x), wanted).backward()
        optimizer.step()
        for kept, p in zip(target.parameters(), net.parameters(), strict=True):
            kept.data.copy_(0.05 * p.data + 0.95 * kept.data)
        if step == 2:
            target.load_state_dict(net.state_dict())
    return net, target


# Two networks.

@table.idiom(settings=RESIDENT)
def adversarial_networks(run):
    torch.manual_seed(0)
    maker, judge = (torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LeakyReLU(0.2),
                                        torch.nn.Linear(8, out)) for out in (6, 1))
    one, two = run.make(maker, betas=(0.5, 0.999)), run.make(judge, betas=(0.5, 0.999))
    criterion, real = torch.nn.BCEWithLogitsLoss(), torch.ones(5, 1)
    for step in range(3):
        two.zero_grad()
        criterion(judge(batch(step)[0]), real).backward()
        fake = maker(batch(100 + step)[0])
        criterion(judge(fake.detach()), torch.zeros(5, 1)).backward()
        two.step()
        for p in judge.parameters():
            p.requires_grad = step == 1
        one.zero_grad()
        criterion(judge(fake), real).backward()
        one.step()
        for p in judge.parameters():
            p.requires_grad = True
    return maker, judge


@table.idiom()
def distillation(run):
    net = run.net()
    torch.manual_seed(5)
    teacher = Net().eval().requires_grad_(False)
    optimizer = run.make(net)
    for step in range(3):
        x = batch(step)[0]
        optimizer.zero_grad()
        functional.kl_div(functional.log_softmax(net(x) / 2, -1),
                          functional.log_softmax(teacher(x) / 2, -1),
                          reduction="batchmean", log_target=True).backward()
        optimizer.step()
    return net


@table.idiom(settings=RESIDENT)
def adapt_in_an_inner_loop(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        optimizer.zero_grad()
        fast = dict(net.named_parameters())
        for inner in range(2):
            out = torch.func.functional_call(net, fast, (batch(10 * step + inner)[0],))
            grads = torch.autograd.grad(functional.mse_loss(out, batch(inner)[1]),
                                        list(fast.values()), create_graph=True)
            fast = {name: p - 0.1 * grad for (name, p), grad in
                    zip(fast.items(), grads, strict=True)}
        out = torch.func.functional_call(net, fast, (batch(step)[0],))
        functional.mse_loss(out, batch(step)[1]).backward()
        optimizer.step()
    return net


# Models that change as a whole.

@table.idiom()
def moved_to_where_it_is(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        net.to("cpu").float().train()
        train(net, optimizer, steps=1, first=step)
        net.eval()
    return net


def converted(run, dtype):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    net.to(dtype)
    optimizer.zero_grad()
    net(batch(3)[0].to(dtype)).float().sum().backward()
    optimizer.step()
    return net


@table.idiom(refused=(spillway.Error, "convert"))
def bfloat16_after_the_optimizer(run):
    return converted(run, torch.bfloat16)


@table.idiom(refused=(spillway.Error, "has elements of torch.float64; they must be"))
def double_after_the_optimizer(run):
    return converted(run, torch.float64)


@table.idiom(settings=RESIDENT)
def a_new_head_that_nobody_trains(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    torch.manual_seed(1)
    net.head = torch.nn.Linear(8, 4)
    train(net, optimizer, first=2)
    return net


@table.idiom(settings=RESIDENT, where=("deferred",), refused=(
    spillway.InvalidArgumentError, "make a new optimizer when one joins it"))
def a_new_head_and_its_group(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    torch.manual_seed(1)
    net.head = torch.nn.Linear(8, 4)
    optimizer.add_param_group({"params": net.head.parameters()})
    train(net, optimizer, first=2)
    return net


@table.idiom()
def assigned_state(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(state, assign=True)
    train(net, optimizer, first=2)
    return net


@table.idiom(refused=CANNOT_BE_COPIED, where=STREAMED)
def copied_model(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    copied = copy.deepcopy(net)
    train(net, optimizer, first=2)
    with torch.no_grad():
        return net, copied, loss_of(copied, 1)


@table.idiom(refused=CANNOT_BE_COPIED, where=STREAMED)
def pickled_model(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    file = io.BytesIO()
    torch.save(net, file)
    train(net, optimizer, first=2)
    file.seek(0)
    return net, torch.load(file, weights_only=False)


@table.over_all()
def test_models_and_parameters(row, setting, tmp_path):
    check(row, setting, tmp_path)
