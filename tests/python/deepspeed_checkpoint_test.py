"""Checkpoints that DeepSpeed itself has written go on as there."""
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile

import pytest
import torch

import deepspeed_files
import spillway
from deepspeed_files import (
    ADAMW,
    WRITERS,
    anonymous_bytes,
    as_deepspeed_reads,
    by_hand,
    changed,
    engine_of,
    is_untouched,
    make,
    network,
    other_network,
    train,
)
from spillway.torch import zero_to_fp32


@pytest.fixture(scope="module", params=WRITERS)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(WRITERS[request.param][0]), deepspeed_files.__file__, request.param, str(folder)],
        check=False, capture_output=True, encoding="utf-8",
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    return request.param, folder


def test_a_checkpoint_of_deepspeed_goes_on_as_there(written):
    name, folder = written
    ranks = WRITERS[name][0]
    engine = make(name)
    path, client_state = engine.load_checkpoint(folder)
    assert path == f"{folder}/global_step4" and client_state == {"epoch": 3}
    assert (engine.global_steps, engine.global_samples) == (4, 16 * ranks)
    losses = train(engine, range(4 * ranks, 8 * ranks))
    expected, weights, rates = torch.load(f"{folder}/after0.pt")
    # The gradients of bf16 are rounded in other places; state that began again is off by 1e-2.
    bound = 2e-3 if "bf16" in WRITERS[name][2] else 1e-5
    assert losses[::ranks] == pytest.approx(expected, rel=10 * bound)
    for mine, reference in zip(engine.module.parameters(), weights, strict=True):
        torch.testing.assert_close(mine, reference, rtol=8 * bound, atol=bound)
    assert engine.get_lr() == pytest.approx(rates, rel=1e-12)
    step = engine.optimizer.state_dict()["state"][0]["step"]
    assert int(step) == 8


def test_only_the_model_of_a_checkpoint_of_deepspeed_may_be_loaded(written):
    name, folder = written
    engine = make(name)
    engine.load_checkpoint(folder, load_module_only=True)
    assert engine.global_steps == 0 and engine.optimizer.state_dict()["state"] == {}
    expected, mine = as_deepspeed_reads(folder), engine.module.state_dict()
    assert mine.keys() == expected.keys()
    for key, value in mine.items():
        assert torch.equal(value, expected[key].to(value.dtype)), key
    for key, value in network(name).named_parameters():
        assert value.requires_grad != torch.equal(mine[key], value.to(mine[key].dtype)), key


def test_masters_and_moments_are_those_that_deepspeed_reads(written, tmp_path):
    """DeepSpeed reads masters alone: it is given moments in their place."""
    name, folder = written
    engine = make(name)
    engine.load_checkpoint(folder)
    states = engine.optimizer.state_dict()["state"]
    names = {parameter: key for key, parameter in engine.module.named_parameters()}
    order = [names[each] for group in engine.optimizer.param_groups for each in group["params"]
             if each.requires_grad]
    assert len(states) == len(order) >= 3
    assert ("master" in states[0]) == ("bf16" in WRITERS[name][2])
    copied = shutil.copytree(folder, tmp_path / "copy")
    for moment in ("master", *ADAMW) if "master" in states[0] else ADAMW:
        for path in copied.glob("global_step4/*optim_states.pt") if moment != "master" else ():
            saved = torch.load(folder / "global_step4" / path.name, weights_only=False)
            part = saved["optimizer_state_dict"]
            masters = "fp32_flat_groups" if WRITERS[name][1] == 3 else (
                "single_partition_of_fp32_groups")
            base = part["optimizer_state_dict" if WRITERS[name][1] == 3 else
                        "base_optimizer_state"]
            part[masters] = [base["state"][number][moment] for number in range(len(part[masters]))]
            torch.save(saved, path)
        expected = as_deepspeed_reads(copied)
        for state, key in zip(states.values(), order, strict=True):
            assert torch.equal(state[moment], expected[key]), (key, moment)
            assert int(state["step"]) == 4 and expected[key].any()


def test_the_state_dict_in_fp32_is_that_of_deepspeed(written):
    name, folder = written
    expected = as_deepspeed_reads(folder)
    found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        wanted = value.float() if value.is_floating_point() else value
        assert found[key].dtype == wanted.dtype and torch.equal(found[key], wanted), key
    without = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(
        folder, exclude_frozen_parameters=True)
    frozen = {key for key, value in network(name).named_parameters() if not value.requires_grad}
    assert found.keys() - without.keys() == frozen


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_a_file_that_would_run_code_or_is_absent_is_refused(written, monkeypatch):
    name, folder = written
    monkeypatch.chdir(folder)
    path = next(iter(sorted(folder.glob("global_step4/*optim_states.pt"))))
    whole = path.read_bytes()
    engine = make(name)
    try:
        torch.save({"optimizer_state_dict": Harmful()}, path, pickle_module=pickle)
        with pytest.raises(spillway.CorruptDataError, match="has more than tensors.*posix.mkdir"):
            engine.load_checkpoint(folder)
        assert not (folder / "harm").exists()
        path.unlink()
        with pytest.raises(spillway.InvalidArgumentError, match="has no zero_pp_rank_0"):
            engine.load_checkpoint(folder)
    finally:
        path.write_bytes(whole)
    assert engine.global_steps == 0


def text(words):
    return pickle.BINUNICODE + struct.pack("<I", len(words)) + words.encode()


FUNCTION, STORAGE = b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n"
STATE = b"}" + text("__defaults__") + b"}" + text("neg") + b"\x88s\x85s"
TENSOR = FUNCTION + b"((" + text("storage") + STORAGE + text("0") + text("cpu") + (
    b"K\x03tQK\x00K\x03\x85K\x01\x85\x89NtR")
#: What a file could do to objects that it is given, in operations of pickle.
HARM = {
    "slots of a function": FUNCTION + b"N" + STATE + b"\x86b",
    "attributes of a function": FUNCTION + STATE + b"b",
    "slots of a class": b"cdeepspeed.runtime\nAny\nN" + STATE + b"\x86b",
    "attributes of a class": b"ctorch\nSize\n" + STATE + b"b",
    "attributes of a storage's type": STORAGE + STATE + b"b",
    "attributes of a tensor": TENSOR + STATE + b"b",
    "an item of a tensor": TENSOR + b"K\x00K\x05s",
    "items of a tensor": TENSOR + b"(K\x00K\x05u",
    "an item of a function": FUNCTION + text("a") + b"K\x05s",
    "an element of a function": FUNCTION + b"K\x05a",
    "elements of an object": b"cdeepspeed.runtime\nAny\n)R(K\x05e",
    "a call of a storage's type": STORAGE + b")R",
    "a call of a text": text("a") + b")R",
    "an object of a storage's type": STORAGE + b")\x81",
    "an instance": b"(iposix\ngetpid\n",
    "an object": b"(cposix\ngetpid\no",
    "an extension": b"\x82\x01",
    "a name on the stack": text("posix") + text("getpid") + b"\x93",
    "a part of a function": b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n",
    "an id that is a text": b"P0\n"}


@pytest.mark.parametrize("name", HARM)
def test_a_file_changes_nothing_of_the_process(name, tmp_path):
    by_hand(tmp_path, other_network())
    engine = engine_of()
    path = tmp_path / "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"a": torch.ones(3)}, path)
    with zipfile.ZipFile(path) as archive:
        whole = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in whole.items():
            archive.writestr(each, data if not each.endswith("data.pkl") else b"".join((
                pickle.PROTO, b"\x02", HARM[name], b"0}", text("optimizer_state_dict"), b"}s.")))
    function = torch._utils._rebuild_tensor_v2
    before = function.__defaults__, dict(vars(function)), dict(vars(torch.Size))
    try:
        with pytest.raises(spillway.CorruptDataError, match="optim_states.pt .* has a"):
            engine.load_checkpoint(tmp_path)
        assert (function.__defaults__, vars(function), vars(torch.Size)) == before
    finally:
        function.__defaults__ = before[0]
    assert is_untouched(engine)


def test_damaged_and_foreign_files_are_refused_by_name(tmp_path):
    engine = engine_of()
    by_hand(tmp_path, other_network())
    path = tmp_path / "global_step4/mp_rank_00_model_states.pt"
    whole = path.read_bytes()
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "program")
    for data in (b"", b"PK", bytes(range(256)) * 40, whole[:-300], pickle.dumps({"a": 1}),
                 (tmp_path / "program").read_bytes()):
        path.write_bytes(data)
        with pytest.raises(spillway.CorruptDataError, match=f"{path} is damaged.*another tag"):
            engine.load_checkpoint(tmp_path)
    torch.save([1, 2], path)
    with pytest.raises(spillway.CorruptDataError, match=f"{path} is damaged.*a list without"):
        engine.load_checkpoint(tmp_path)
    path.write_bytes(whole)
    with changed(path) as saved:  # as stage 0
        saved.update(param_shapes=None)
    with pytest.raises(spillway.NotSupportedError, match="is not of ZeRO 1, 2 or 3"):
        engine.load_checkpoint(tmp_path)
    path.write_bytes(whole)
    torch.save({"optimizer_state_dict": {"single_partition_of_fp32_groups": 3,
                                         "base_optimizer_state": {"state": {}}}},
               path.with_name("zero_pp_rank_0_mp_rank_00_optim_states.pt"))
    with pytest.raises(spillway.CorruptDataError, match="files of another layout"):
        engine.load_checkpoint(tmp_path)
    assert is_untouched(engine)


def test_a_schedule_without_a_saved_state_stays_and_that_of_another_is_refused(tmp_path):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2)

    by_hand(tmp_path, other_network(), schedule={"last_batch_iteration": 3})
    engine = engine_of(lr_scheduler=schedule)
    with pytest.raises(spillway.InvalidArgumentError, match=r"last_batch_iteration.*a StepLR has "
                                                            r"not.*load_lr_scheduler_states"):
        engine.load_checkpoint(tmp_path)
    assert is_untouched(engine)
    engine.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert engine.global_steps == 4 and engine.lr_scheduler.last_epoch == 0
    by_hand(tmp_path, other_network())
    _, client_state = engine.load_checkpoint(tmp_path)
    assert engine.global_steps == 4 and engine.lr_scheduler.last_epoch == 0
    assert torch.equal(client_state["epoch"], torch.arange(3))
    saved = schedule(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)).state_dict()
    by_hand(tmp_path, other_network(), schedule=saved | {"last_epoch": 4, "verbose": False})
    engine.load_checkpoint(tmp_path)
    assert engine.lr_scheduler.last_epoch == 4


def test_an_engine_whose_model_was_replaced_in_part_makes_no_step(tmp_path):
    by_hand(tmp_path, other_network())
    with changed(tmp_path / "global_step4/mp_rank_00_model_states.pt") as saved:
        del saved["module"]["2.bias"]
    engine = engine_of()
    with pytest.raises(RuntimeError, match=r"Missing key.*2\.bias"):
        engine.load_checkpoint(tmp_path)
    with pytest.raises(spillway.CorruptDataError, match=r"load_checkpoint\(\) was cut off"):
        train(engine, [0])
    engine.zero_grad()
    by_hand(tmp_path, other_network())
    engine.load_checkpoint(tmp_path)
    train(engine, [0])
    assert engine.global_steps == 5


@pytest.mark.parametrize("ranks", [1, 3])
def test_state_is_cut_out_of_the_parts_of_ranks(ranks, tmp_path):
    """bf16, so that masters are those of the files; parameters begin and end within parts."""
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}}
    flat = by_hand(tmp_path, other_network(), ranks=ranks, dtype=torch.bfloat16)
    engine = engine_of(config=config)
    engine.load_checkpoint(tmp_path)
    states = engine.optimizer.state_dict()["state"]
    for key, factor in {"master": 1, **ADAMW}.items():
        assert torch.equal(torch.cat([states[n][key].flatten() for n in range(4)]), flat * factor)
    assert all(int(state["step"]) == 4 for state in states.values())


def test_state_stays_in_the_files_until_it_is_taken(tmp_path):
    """16 MiB of masters and 32 MiB of moments in two parts, and a parameter that lies in one."""
    from spillway.torch._deepspeed_files import Saved
    from spillway.torch._engine_deepspeed import read_state

    model = torch.nn.Sequential(torch.nn.Linear(1000, 2100), torch.nn.Linear(2100, 1000))
    by_hand(tmp_path, model, ranks=2)
    engine = engine_of(model=model)
    folder = str(tmp_path / "global_step4")
    before = anonymous_bytes()
    state = read_state(Saved(folder), engine.optimizer, dict(model.named_parameters()), True)
    assert anonymous_bytes() - before < 6 << 20
    assert len(state["state"]) == 4


def test_moments_that_were_never_made_begin_and_those_without_steps_are_refused(tmp_path):
    model = other_network()
    by_hand(tmp_path, model, step=None)
    with pytest.raises(spillway.InvalidArgumentError, match=r"no step, the number of its updates"):
        (engine := engine_of()).load_checkpoint(tmp_path)
    assert is_untouched(engine)
    by_hand(tmp_path, model, {}, step=None)
    with pytest.raises(spillway.InvalidArgumentError, match="no exp_avg, which an Off.*give init"):
        engine.load_checkpoint(tmp_path)
    by_hand(tmp_path, model, {}, updates=0, step=None)
    engine.load_checkpoint(tmp_path)
    assert engine.optimizer.state_dict()["state"] == {}
    flat = by_hand(tmp_path, model, {}, step=None, dtype=torch.bfloat16)
    engine = engine_of(lambda p: torch.optim.SGD(p, lr=0.1), config={
        "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}})
    engine.load_checkpoint(tmp_path)
    states = engine.optimizer.state_dict()["state"]
    assert engine.global_steps == 4
    assert torch.equal(torch.cat([states[n]["master"].flatten() for n in range(4)]), flat)
    by_hand(tmp_path, model)
    with pytest.raises(spillway.InvalidArgumentError, match="has no momentum_buffer"):
        engine.load_checkpoint(tmp_path)


def test_a_parameter_that_was_frozen_there_is_refused_or_begins_again(tmp_path):
    model = other_network()
    by_hand(tmp_path, model, dtype=torch.bfloat16)
    with changed(tmp_path / "global_step4/mp_rank_00_model_states.pt") as saved:
        del saved["param_shapes"][0]["2.bias"]
    with changed(tmp_path / "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt") as saved:
        part = saved["optimizer_state_dict"]
        part["single_partition_of_fp32_groups"][0] = (
            part["single_partition_of_fp32_groups"][0][:-3].clone())
    engine = engine_of()
    with pytest.raises(spillway.InvalidArgumentError, match=r"has no state of 2\.bias, which the "
                                                            r"optimizer trains.*strict=False"):
        engine.load_checkpoint(tmp_path)
    assert is_untouched(engine)
    engine.load_checkpoint(tmp_path, load_module_strict=False)
    assert engine.optimizer.state_dict()["state"].keys() == {0, 1, 2}
    engine.module[2].bias.requires_grad_(False)
    engine = engine_of(lambda p: torch.optim.AdamW([each for each in p if each.requires_grad]),
                       engine.module)
    engine.load_checkpoint(tmp_path)
    assert engine.global_steps == 4
