"""Settings of groups in a folder that `save` wrote: whose they are, and that they are whole."""
import json
import pathlib

import pytest
import torch

import spillway
from spillway.torch import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedSGD,
)


def weight():
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(8))


def trained(kind, steps=3, **arguments):
    mine = weight()
    optimizer = kind([mine], lr=0.01, weight_decay=0.3, **arguments)
    train(mine, optimizer, steps)
    return mine, optimizer


def train(mine, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (mine - 1).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("saver, loader, arguments", [
    (OffloadedAdamW, OffloadedAdam, {}), (OffloadedAdam, OffloadedAdamW, {}),
    (OffloadedAdam, OffloadedAdam, {"decoupled_weight_decay": True})])
def test_a_folder_of_another_weight_decay_is_refused(tmp_path, saver, loader, arguments):
    _, optimizer = trained(saver)
    optimizer.save(tmp_path / "saved")
    again, other = trained(loader, 1, **arguments)
    before, settings = again.detach().clone(), dict(other.param_groups[0])
    with pytest.raises(spillway.InvalidArgumentError,
                       match=f"saved by {saver.__name__}.*weight decay.*{loader.__name__}"):
        other.load(tmp_path / "saved")
    assert torch.equal(again, before) and other.param_groups[0] == settings
    train(again, other, 1)


@pytest.mark.parametrize("kind, arguments, loader", [
    (OffloadedAdamW, {}, OffloadedAdamW), (OffloadedAdam, {}, OffloadedAdam),
    (OffloadedAdam, {"decoupled_weight_decay": True}, OffloadedAdam),
    (OffloadedAdam, {"decoupled_weight_decay": True}, OffloadedAdamW),
    (OffloadedLion, {}, OffloadedLion), (OffloadedAdagrad, {}, OffloadedAdagrad)])
def test_a_folder_of_the_same_weight_decay_goes_on(tmp_path, kind, arguments, loader):
    mine, optimizer = trained(kind, **arguments)
    optimizer.save(tmp_path / "saved")
    train(mine, optimizer, 3)
    again = weight()
    resumed = loader([again])
    resumed.load(tmp_path / "saved")
    train(again, resumed, 3)
    assert torch.equal(again, mine)


TORCHS = {OffloadedAdamW: torch.optim.AdamW, OffloadedAdam: torch.optim.Adam,
          OffloadedSGD: torch.optim.SGD}


@pytest.mark.parametrize("saver, loader", [(OffloadedAdamW, OffloadedAdam),
                                           (OffloadedAdam, OffloadedAdamW)])
def test_a_state_dict_says_how_weight_decay_acts_and_a_folder_is_refused(tmp_path, saver, loader):
    results = []
    for kinds in (saver, loader), (TORCHS[saver], TORCHS[loader]):
        mine, optimizer = trained(kinds[0])
        again = torch.nn.Parameter(mine.detach().clone())
        other = kinds[1]([again])
        other.load_state_dict(optimizer.state_dict())
        train(again, other, 5)
        results.append(again.detach())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    mine, optimizer = trained(saver)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.save(tmp_path / "saved")
    with pytest.raises(spillway.InvalidArgumentError, match="weight decay acts elsewhere"):
        loader([weight()]).load(tmp_path / "saved")


@pytest.mark.parametrize("in_a_state", [True, False])
def test_betas_in_a_group_of_sgd_are_not_its_momentum(in_a_state):
    results = []
    for kind in OffloadedSGD, TORCHS[OffloadedSGD]:
        mine = weight()
        optimizer = kind([{"params": [mine]} if in_a_state else
                          {"params": [mine], "betas": (0.1, 0.2)}], lr=0.01, momentum=0.9)
        if in_a_state:
            state = optimizer.state_dict()
            state["param_groups"][0]["betas"] = (0.1, 0.2)
            optimizer.load_state_dict(state)
        train(mine, optimizer, 6)
        results.append(mine.detach())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.fixture
def file(tmp_path):
    _, optimizer = trained(OffloadedAdamW)
    optimizer.save(tmp_path / "saved")
    return tmp_path / "saved" / "groups.json"


def test_no_flipped_bit_of_the_settings_is_taken(file):
    whole = file.read_bytes()
    again = weight()
    resumed = OffloadedAdamW([again], lr=0.5)
    before = again.detach().clone()
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            file.write_bytes(flipped)
            with pytest.raises(spillway.CorruptDataError, match=r"groups\.json"):
                resumed.load(file.parent)
    assert torch.equal(again, before) and resumed.param_groups[0]["lr"] == 0.5
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        with pytest.raises(spillway.CorruptDataError, match=r"groups\.json"):
            resumed.load(file.parent)
    file.write_bytes(whole)
    resumed.load(file.parent)
    assert resumed.param_groups[0]["lr"] == 0.01


def test_settings_of_an_older_version_have_no_checksum(file):
    groups = json.loads(file.read_text())["groups"]
    groups[0]["lr"] = 0.25
    file.write_text(json.dumps({"groups": groups}))
    for kind in (OffloadedAdamW, OffloadedAdam):  # nobody knows whose they are
        resumed = kind([weight()])
        resumed.load(file.parent)
        assert resumed.param_groups[0]["lr"] == 0.25
    pathlib.Path(file).unlink()
    OffloadedAdamW([weight()]).load(file.parent)


def test_settings_that_no_trainer_takes_have_changed_nothing(file):
    groups = json.loads(file.read_text())["groups"]
    file.write_text(json.dumps({"groups": [{**groups[0], "bias_correction": None}]}))
    mine = weight()
    optimizer = OffloadedAdamW([mine], lr=0.5)
    before, settings = mine.detach().clone(), dict(optimizer.param_groups[0])
    with pytest.raises(spillway.InvalidArgumentError, match="bias_correction.*True or False"):
        optimizer.load(file.parent)
    assert torch.equal(mine, before) and optimizer.param_groups[0] == settings
    train(mine, optimizer, 1)


@pytest.mark.parametrize("text", [
    "[]", "{}", '{"groups": 1}', '{"groups": [1]}', '"groups"', "\xff",
    '{"groups": [{"lr": 0.1}], "more": 1}'])
def test_what_is_no_settings_of_groups_is_refused(file, text):
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(spillway.CorruptDataError, match=r"groups\.json"):
        OffloadedAdamW([weight()]).load(file.parent)
