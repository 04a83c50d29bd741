"""Checkpoints of DeepSpeed's ZeRO 3, whose parameters are cut over ranks, are whole again, and what
has another form is refused. deepspeed_checkpoint_test.py has those that DeepSpeed has written."""
import shutil
import weakref

import pytest
import torch

import spillway
from deepspeed_files import (
    ADAMW,
    by_hand,
    changed,
    cut_by_hand,
    engine_of,
    network,
    other_network,
)
from spillway.torch import _deepspeed_files, zero_to_fp32


#: What is changed of a rank's model file or optimizer file, and what the error says.
WRONG = {
    "a part that is too short": ("optim", 1, lambda saved: saved.update(
        fp32_flat_groups=[saved["fp32_flat_groups"][0][:-1].clone()]), "has 178 and 177 values"),
    "moments that are too long": ("optim", 0, lambda saved: saved["optimizer_state_dict"]["state"][
        0].update(exp_avg=torch.ones(198)), "has 198 and 178 values"),
    "whole numbers": ("optim", 0, lambda saved: saved.update(
        fp32_flat_groups=[torch.ones(178, dtype=torch.int32)]), "another layout.*int32"),
    "a table of values": ("optim", 0, lambda saved: saved.update(
        fp32_flat_groups=[torch.ones(178, 1)]), "another layout"),
    "no group": ("optim", 1, lambda saved: saved.update(fp32_flat_groups=[]), "another layout"),
    "a number in place of groups": ("optim", 1, lambda saved: saved.update(fp32_flat_groups=3),
                                    "another layout"),
    "no masters": ("optim", 1, lambda saved: saved.pop("fp32_flat_groups"), "is not of ZeRO"),
    "files of three ranks": ("optim", 1, lambda saved: saved.update(partition_count=3),
                             "is of 3 ranks"),
    "experts": ("optim", 1, lambda saved: saved.update(ds_zero_partition_groups=[]), "experts"),
    "no frozen part": ("model", 1, lambda saved: saved.update(frozen_param_fragments={}),
                       "another layout"),
    "a frozen part that is too short": ("model", 1, lambda saved: saved[
        "frozen_param_fragments"].update({"0.bias": torch.ones(15)}), r"parts of 0\.bias that do"),
    "a quantized part": ("model", 0, lambda saved: saved["frozen_param_fragments"].update(
        {"0.bias": torch.ones(16, dtype=torch.int8)}), "quantized weights"),
    "a negative shape": ("model", 0, lambda saved: saved["param_shapes"][0].update(
        {"2.bias": [-3]}), "another layout"),
    "another shape": ("model", 0, lambda saved: saved["param_shapes"][0].update(
        {"2.bias": torch.Size((1, 3))}), r"2\.bias with the shape \(1, 3\), and the model has"),
    "ranks that are no number": ("model", 0, lambda saved: saved.update(dp_world_size="2"),
                                 "another layout.*a number is expected"),
    "no ranks": ("model", 0, lambda saved: saved.update(dp_world_size=0), "another layout"),
    "ranks without files": ("model", 0, lambda saved: saved.update(dp_world_size=10**12),
                            "has no zero_pp_rank_2"),
    "a model without a parameter": ("model", 0, lambda saved: [
        each.pop("0.bias") for each in (saved["module"], saved["frozen_param_shapes"])],
                                    r"lacks 0\.bias of the model.*strict=False"),
}


def half_frozen(model):
    model[0].bias.requires_grad_(False)
    return model


def make_cut(model):
    return engine_of(lambda p: torch.optim.AdamW([each for each in p if each.requires_grad]),
                     model, config={"train_micro_batch_size_per_gpu": 4,
                                    "bf16": {"enabled": True}})


@pytest.mark.parametrize("name", WRONG)
def test_lengths_and_kinds_of_what_ranks_have_cut_are_checked(name, tmp_path):
    inside = cut_by_hand(tmp_path, half_frozen(other_network()), 2)
    kind, rank, change, words = WRONG[name]
    engine = make_cut(half_frozen(network()))
    with changed(inside / f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt") as saved:
        change(saved if kind == "model" else saved["optimizer_state_dict"])
    with pytest.raises(spillway.Error, match=words):
        engine.load_checkpoint(tmp_path)
    assert engine.global_steps == 0 and not engine.optimizer.has_state() and all(
        torch.equal(a, b.bfloat16()) for a, b in zip(
            engine.module.parameters(), network().parameters(), strict=True))


def test_files_of_a_rank_that_are_two_or_none_are_refused_as_such(tmp_path):
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    inside = cut_by_hand(tmp_path / "cut", half_frozen(other_network()), 2)
    shutil.copy(inside / name, inside / f"bf16_{name}")
    with pytest.raises(spillway.InvalidArgumentError, match=f"has 2 files of the name {name}"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "cut")
    by_hand(tmp_path / "parts", other_network(), ranks=2)
    (tmp_path / "parts/global_step4" / name).unlink()
    with pytest.raises(spillway.InvalidArgumentError, match=f"no {name}.*or give engine.load_"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "parts")


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_parameters_that_ranks_have_cut_are_whole_again(ranks, tmp_path):
    model = half_frozen(other_network())
    cut_by_hand(tmp_path, model, ranks)
    engine = make_cut(half_frozen(network()))
    engine.load_checkpoint(tmp_path)
    states = engine.optimizer.state_dict()["state"]
    trained = [each.detach() for each in model.parameters() if each.requires_grad]
    for state, values in zip(states.values(), trained, strict=True):
        for key, factor in {"master": 1, **ADAMW}.items():
            assert torch.equal(state[key], values * factor)
    for mine, values in zip(engine.module.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, values.bfloat16())
    engine = make_cut(half_frozen(network()))
    assert engine.load_checkpoint(tmp_path, custom_load_fn=lambda src, dst: dst.load_state_dict(
        src))[0] is not None
    assert torch.equal(engine.module[0].bias, model[0].bias.bfloat16())


def test_what_ranks_have_cut_is_brought_together_one_parameter_after_the_other(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(7, 7, bias=False) for _ in range(8)))
    cut_by_hand(tmp_path, model, 2)
    expected = [each.detach().clone() for each in model.parameters()]
    engine = engine_of(model=model)
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    made, most = [], 0
    contiguous = _deepspeed_files.Cut.contiguous

    def counted(cut):
        nonlocal most
        tensor = contiguous(cut)
        made.append(weakref.ref(tensor))
        most = max(most, sum(each() is not None for each in made))
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_deepspeed_files.Cut, "contiguous", counted)
        engine.load_checkpoint(tmp_path)
    # Each has two moments; those of the parameter before may still be there.
    assert len(made) >= 24 and most <= 4
    for mine, values in zip(model.parameters(), expected, strict=True):
        assert torch.equal(mine, values)
