"""Checkpoints of the engine become one state dict in fp32, which has the masters' bits.
deepspeed_checkpoint_test.py compares those of DeepSpeed's checkpoints with DeepSpeed's own."""
import errno
import json
import pathlib
import subprocess
import sys
import tempfile
import weakref

import pytest
import safetensors.torch
import torch
from rank_processes import ranks_at

import spillway
import spillway.torch
from spillway.torch import _own_masters, _weight_files, zero_to_fp32

MODULE = "spillway.torch.zero_to_fp32"


class Net(torch.nn.Module):
    """Has tied and frozen parameters, one in another memory format, and buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.image = torch.nn.Conv2d(3, 4, 3)
        self.first, self.frozen = torch.nn.Linear(4, 5), torch.nn.Linear(5, 5)
        self.last, self.tied = (torch.nn.Linear(5, 4, bias=False) for _ in range(2))
        self.tied.weight = self.last.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("scale", torch.tensor(0.3))

    def forward(self, x):
        hidden = self.frozen(torch.tanh(self.first(self.image(x).mean((2, 3)))))
        return (self.last(hidden) + self.tied(hidden)) * self.scale


def trained(ranks_of=None, channels_last=True, dtype="bf16", optimizer="AdamW", **own):
    """Returns an engine after two steps. It is not told the names of its parameters."""
    model = Net()
    if channels_last:
        model.image.to(memory_format=torch.channels_last)
    parameters = [each for each in model.parameters() if each.requires_grad]
    params = {"lr": 1e-2, **({"momentum": 0.9} if optimizer == "SGD" else {})}
    engine = spillway.torch.initialize(
        model=model, config={"train_micro_batch_size_per_gpu": 2, "spillway": own,
                             "optimizer": {"type": optimizer, "params": params},
                             **({dtype: {"enabled": True}} if dtype != "fp32" else {})},
        model_parameters=[{"params": parameters[3:]},
                          {"params": parameters[:3], "weight_decay": 0.1}])[0]
    for seed in range(2):
        x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
        loss = engine(x.to(next(model.parameters()).dtype)).float().square().sum()
        engine.backward(loss)
        engine.step()
    return engine


def masters_of(engine):
    """Returns what the optimizer itself says, by names of the model."""
    states = engine.optimizer.state_dict()["state"]
    order = [each for group in engine.optimizer.param_groups for each in group["params"]]
    known = {id(each): states[number]["master"] for number, each in enumerate(order)
             if "master" in states.get(number, {})}
    return {name: known.get(id(value), value).detach().clone()
            for name, value in engine.module.state_dict(keep_vars=True).items()}


def check(found, engine, masters):
    values = engine.module.state_dict()
    assert found.keys() == masters.keys() == values.keys()
    for name, value in masters.items():
        wanted = value.float() if value.is_floating_point() else value
        assert found[name].dtype == wanted.dtype and torch.equal(found[name], wanted), name
    torch.nn.Module.load_state_dict(Net(), found)


SETTINGS = [{"state_format": "split"}, {"state_format": "bf16"}, {"state_format": "int8"}, {},
            {"dtype": "fp32"}, {"optimizer": "SGD"}, {"optimizer": "Adagrad"}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_state_dict_has_the_masters_of_the_checkpoint(settings, tmp_path):
    engine = trained(**settings)
    engine.save_checkpoint(tmp_path)
    masters = masters_of(engine)
    if settings.get("state_format") not in ("bf16", "int8") and settings.get("dtype") != "fp32":
        assert not torch.equal(masters["first.weight"], engine.module.first.weight.float())
    before = sorted(tmp_path.iterdir())
    found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    check(found, engine, masters)
    assert found["tied.weight"] is found["last.weight"]
    assert sorted(tmp_path.iterdir()) == before
    lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(tmp_path), lazy_mode=True)
    assert all(lazy[name].shape == value.shape and lazy[name].dtype == value.dtype
               for name, value in found.items())
    check({name: value.contiguous() for name, value in lazy.items()}, engine, masters)
    del lazy
    assert sorted(tmp_path.iterdir()) == before
    model = zero_to_fp32.load_state_dict_from_zero_checkpoint(Net(), tmp_path, "global_step2")
    check(model.state_dict(), engine, masters)
    without = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(
        tmp_path, exclude_frozen_parameters=True)
    assert found.keys() - without.keys() == {"frozen.weight", "frozen.bias"}


def save_on_rank(group, rank, folder):
    torch.distributed.distributed_c10d._world.default_pg = group
    engine = trained(channels_last=False, state_format="split")
    engine.save_checkpoint(folder)
    return masters_of(engine) if rank == 0 else engine.optimizer.state_dict() and None


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_parts_of_ranks_become_whole(ranks, tmp_path):
    with ranks_at(tmp_path / "store", ranks) as on_ranks:
        masters = on_ranks(ranks, save_on_rank, str(tmp_path / "saved"))[0]
    found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "saved")
    for name, value in masters.items():
        assert torch.equal(found[name], value.to(found[name].dtype)), name
    assert found["first.weight"].ne(found["first.weight"].bfloat16()).any()
    (tmp_path / "saved/global_step2/optimizer/rank1").rename(tmp_path / "elsewhere")
    with pytest.raises(spillway.CorruptDataError, match="bring the folders of all ranks"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "saved")


def run(*arguments):
    return subprocess.run([sys.executable, "-m", MODULE, *map(str, arguments)], check=False,
                          capture_output=True, encoding="utf-8", timeout=300)


def test_the_command_writes_files_that_others_read(tmp_path):
    engine = trained(state_format="split")
    engine.save_checkpoint(tmp_path / "saved", tag="first")
    masters = masters_of(engine)
    done = run(tmp_path / "saved", tmp_path / "bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert [each.name for each in (tmp_path / "bin").iterdir()] == ["pytorch_model.bin"]
    found = torch.load(tmp_path / "bin/pytorch_model.bin", weights_only=True)
    check(found, engine, masters)
    assert found["tied.weight"].data_ptr() == found["last.weight"].data_ptr()
    done = run(tmp_path / "saved", tmp_path / "safe", "--safe_serialization", "-t", "first")
    assert (done.returncode, done.stderr) == (0, "")
    check(safetensors.torch.load_file(tmp_path / "safe/model.safetensors"), engine, masters)
    done = run(tmp_path / "saved", tmp_path / "no", "--tag", "other")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no checkpoint of tag other" in done.stderr
    done = run(tmp_path, tmp_path / "no")
    assert done.returncode == 1 and "no file latest" in done.stderr
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_text("kept")
    for output, cause in ((tmp_path / "file", "file is a file: give a folder"),
                          (tmp_path / "file/below", "cannot be written: Not a directory")):
        done = run(tmp_path / "saved", output)
        assert done.returncode == 1 and "Traceback" not in done.stderr and cause in done.stderr
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("safe", [True, False])
def test_large_models_are_in_several_files(safe, tmp_path):
    engine = trained(dtype="fp32")
    engine.save_checkpoint(tmp_path)
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
        tmp_path, tmp_path / "out", max_shard_size=200, safe_serialization=safe)
    kind, stem, load = (("safetensors", "model", safetensors.torch.load_file) if safe else
                        ("bin", "pytorch_model", torch.load))
    index = json.loads((tmp_path / f"out/{stem}.{kind}.index.json").read_text())
    files = sorted((tmp_path / "out").glob(f"{stem}-*.{kind}"))
    assert len(files) > 2 and files[0].name == f"{stem}-00001-of-{len(files):05}.{kind}"
    found = {}
    for file in files:
        part = load(file)
        sizes = [each.nbytes for each in part.values()]
        assert len(part) == 1 or sum(sizes) <= 200
        assert all(index["weight_map"][name] == file.name for name in part)
        found |= part
    check(found, engine, masters_of(engine))
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in found.values())


def test_a_file_of_safetensors_takes_memory_for_one_tensor(tmp_path):
    engine = trained(state_format="split")
    engine.save_checkpoint(tmp_path)
    made, most = [], 0
    contiguous = zero_to_fp32.LazyTensor.contiguous

    def counted(value):
        nonlocal most
        tensor = contiguous(value)
        made.append(weakref.ref(tensor))
        most = max(most, sum(each() is not None for each in made))
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_to_fp32.LazyTensor, "contiguous", counted)
        zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
            tmp_path, tmp_path / "out", max_shard_size=None, safe_serialization=True)
    assert len(made) == len(engine.module.state_dict()) and most <= 2  # one that is replaced
    check(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), engine,
          masters_of(engine))


def test_damaged_and_older_checkpoints_are_refused_by_name(tmp_path):
    engine = trained(state_format="split")
    engine.save_checkpoint(tmp_path)
    folder = tmp_path / "global_step2"
    names = folder / "names.json"
    whole = json.loads(names.read_text())

    def refused(kind, match):
        with pytest.raises(kind, match=match):
            zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)

    for text in ("", "[]", '{"state": 3, "frozen": []}', "\ud800"):
        names.write_bytes(text.encode(errors="surrogatepass"))
        refused(spillway.CorruptDataError, "names.json is damaged")
    other = {**whole["state"], "first.weight": whole["state"]["first.bias"]}
    names.write_text(json.dumps({**whole, "state": other}))
    refused(spillway.CorruptDataError, "0 to 5 of first.weight, which has 20")
    names.unlink()
    refused(spillway.CorruptDataError, "no state of .*without names.json.*save it again")
    names.write_text(json.dumps(whole))
    description = folder / "optimizer/parameters.json"
    for change in (lambda saved: saved["parameters"][0].update(elements=-1),
                   lambda saved: saved["parameters"][0].update(elements=10**15),
                   lambda saved: saved.update(dtype="fp8"), lambda saved: saved.clear(),
                   lambda saved: saved.update(optimizers=[]),
                   lambda saved: saved.update(state_format="int8")):
        kept = description.read_text()
        saved = json.loads(kept)
        change(saved)
        description.write_text(json.dumps(saved))
        refused(spillway.Error, "parameters.json is (damaged|not as it was)|load another tag")
        description.write_text(kept)
    (folder / "model.pt").write_bytes(b"PK")
    refused(spillway.CorruptDataError, "model.pt is damaged")
    assert pathlib.Path(names).exists() and not list(tmp_path.glob(".state-*"))


NAMES_READ = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
              "pytorch_model.bin.index.json"]  # in the order of transformers


@pytest.mark.parametrize("number", range(4))
def test_an_older_file_that_programs_read_first_is_refused(number, tmp_path):
    trained(dtype="fp32").save_checkpoint(tmp_path)
    for there in range(4):
        out = tmp_path / f"out{there}"
        out.mkdir()
        (out / NAMES_READ[there]).write_text("older")

        def convert(out=out):
            zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
                tmp_path, out, max_shard_size=200 if number % 2 else None,
                safe_serialization=number < 2)

        if there < number:
            with pytest.raises(spillway.InvalidArgumentError,
                               match=f"{out / NAMES_READ[there]} is there.*remove it"):
                convert()
            assert [each.read_text() for each in out.iterdir()] == ["older"]
        else:
            convert()
            assert (out / NAMES_READ[number]).read_bytes() != b"older"


def test_elements_that_safetensors_lacks_are_refused(tmp_path):
    with pytest.raises(spillway.NotSupportedError, match="complex64, which safetensors does not"):
        _weight_files.write_files({"a": torch.ones(2, dtype=torch.complex64)}, str(tmp_path), None,
                                  safe=True)


def test_frozen_parameters_that_were_left_out_are_not_missed(tmp_path):
    engine = trained(state_format="split")
    engine.module.first.requires_grad_(False)
    engine.save_checkpoint(tmp_path, exclude_frozen_parameters=True)
    found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    masters = masters_of(engine)
    assert masters.keys() - found.keys() == {
        f"{part}.{kind}" for part in ("first", "frozen") for kind in ("weight", "bias")}
    assert torch.equal(found["last.weight"], masters["last.weight"])


class Renamed(torch.nn.Linear):
    """Its state dict calls the weight kernel."""

    def __init__(self):
        super().__init__(4, 4)
        self._register_state_dict_hook(self.rename)

    @staticmethod
    def rename(_, values, prefix, __):
        values[prefix + "kernel"] = values.pop(prefix + "weight")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_values_that_lack_names_of_parameters_of_16_bits_are_refused(dtype, tmp_path):
    engine = spillway.torch.initialize(model=Renamed(), config={
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        **({"bf16": {"enabled": True}} if dtype == "bf16" else {})})[0]
    engine.save_checkpoint(tmp_path)
    if dtype == "bf16":
        with pytest.raises(spillway.NotSupportedError, match="state of weight, and the model's"):
            zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    else:
        found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
        assert torch.equal(found["kernel"], engine.module.weight)


def test_values_of_a_gpu_are_read_without_one(tmp_path, monkeypatch):
    engine = trained(state_format="split")
    engine.save_checkpoint(tmp_path)
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    torch.save(engine.module.state_dict(), tmp_path / "global_step2/model.pt")
    found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert {each.device.type for each in found.values()} == {"cpu"}
    check(found, engine, masters_of(engine))


def test_a_folder_that_cannot_be_written_is_one_for_16_bits_alone(tmp_path, monkeypatch):
    def refused(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    engines = {dtype: trained(dtype=dtype) for dtype in ("fp32", "bf16")}
    for dtype, engine in engines.items():
        engine.save_checkpoint(tmp_path / dtype)
    masters = masters_of(engines["fp32"])
    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    check(zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "fp32"),
          engines["fp32"], masters)
    with pytest.raises(spillway.IoError, match=r"no copy of the state.*Permission denied") as error:
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "bf16")
    assert error.value.errno == errno.EACCES


def test_what_this_machine_cannot_do_is_no_damage(tmp_path, monkeypatch):
    def refused(*_):
        raise spillway.NotSupportedError("not in this build")

    trained().save_checkpoint(tmp_path)
    monkeypatch.setattr(_own_masters, "trainer_options", refused)
    with pytest.raises(spillway.NotSupportedError, match="^not in this build$"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
