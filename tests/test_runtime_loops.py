"""Training scripts and functions that lack files, options or a fault of their own: what `--reach` can drive."""
from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from runtime_check import made_files
from runtime_check.evidence import cannot_tell
from runtime_check.extract import Namespace
from runtime_check.faults import own_fault
from runtime_check.lazy import wanted
from runtime_check.reach import Reach, Tried, section
from torchlint.cli import main


def reached(folder: Path, **texts: str) -> dict[str, dict[str, Any]]:
    """What `--reach` says of the training loops of files, by their names."""
    for name, text in texts.items():
        place = folder / f"{name.replace('__', '/')}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    run = CliRunner().invoke(main, ["confirm", "--reach", "--isolated", "--output-format", "json", "-j1", str(folder)])
    assert run.exit_code == 0, run.output
    tried = json.loads(run.stdout)["tried"]
    return {Path(row["path"]).stem: row for row in tried if row["kind"] == "loops"}


def test_pictures_lists_and_checkpoints_that_are_not_there_are_made(tmp_path: Path) -> None:
    """A data set of image files, one of lines of text, a vocabulary beside it, a checkpoint to resume from."""
    rows = reached(tmp_path, pictures="""
        import glob, os
        import torch
        from PIL import Image
        from torch.utils.data import DataLoader, Dataset
        class Pictures(Dataset):
            def __init__(self, root):
                self.files = sorted(glob.glob(root + "/*.jpg"))[:-2000]
            def __len__(self):
                return len(self.files)
            def __getitem__(self, index):
                picture = Image.open(self.files[index]).convert("RGB").resize((16, 12))
                small = picture.resize((8, 6))
                flat = [torch.tensor(list(item.tobytes())).float() / 255 for item in (picture, small)]
                return {"whole": flat[0], "half": flat[1]}
        loader = DataLoader(Pictures("../../data/faces"), batch_size=4, num_workers=2)
        net = torch.nn.Linear(3 * 8 * 6, 3 * 16 * 12)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        if os.path.exists("net.pth"):
            saved = torch.load("net.pth")
            net.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            print("from epoch", saved["epoch"] + 1)
        for batch in loader:
            optimizer.zero_grad()
            (net(batch["half"]) - batch["whole"]).pow(2).mean().backward()
            optimizer.step()
    """, words="""
        import os
        import torch
        def read(path):
            assert os.path.isfile(path), path
            return open(path, encoding="utf-8").read().split()
        words = read("corpus/train.txt")
        vocabulary = sorted(set(words))
        assert 5 < len(vocabulary) < 100
        net = torch.nn.Embedding(len(vocabulary), 1)
        for name in os.listdir("corpus/more"):
            token = torch.tensor([vocabulary.index(word) for word in read(os.path.join("corpus/more", name))])
            net(token).mean().backward()
    """)
    assert rows["pictures"]["verdict"] == "confirmed", rows["pictures"]
    assert "made-up files" in rows["pictures"]["how"]
    assert rows["words"]["verdict"] == "confirmed", rows["words"]
    assert not (tmp_path / "corpus").exists()


def test_files_are_made_only_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with made_files.watching("", making=True), pytest.raises(FileNotFoundError):
        Path("absent.txt").read_text(encoding="utf-8")
    assert "absent.txt" in made_files.missed
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(made_files, "_top", str(tmp_path / "here"))
    with made_files.watching("", making=True):
        assert Path("here/absent.txt").read_text(encoding="utf-8").startswith("the quick brown fox")
        for outside in ("absent.txt", "here/../absent.txt"):
            with pytest.raises(FileNotFoundError):
                Path(outside).read_text(encoding="utf-8")
    with pytest.raises(FileNotFoundError):
        Path("here/other.txt").read_text(encoding="utf-8")


def test_a_sub_command_that_trains_is_given_and_modules_beside_a_script_are_found(tmp_path: Path) -> None:
    rows = reached(tmp_path, tool____init__="", tool__layers="""
        import torch
        class Layer(torch.nn.Linear):
            pass
    """, tool__run="""
        import argparse
        from layers import Layer
        import torch
        def train(args):
            net = Layer(args.width, 1)
            for _ in range(args.steps):
                net(torch.randn(4, args.width)).sum().backward()
        def main():
            parser = argparse.ArgumentParser()
            commands = parser.add_subparsers(dest="command")
            show = commands.add_parser("show")
            show.add_argument("--path", required=True)
            teach = commands.add_parser("train")
            teach.add_argument("--width", type=int, default=7)
            teach.add_argument("--steps", type=int, required=True)
            args = parser.parse_args()
            if args.command is None:
                raise SystemExit("say what to do")
            if args.command == "train":
                args.steps += 3
                train(args)
        if __name__ == "__main__":
            main()
    """)
    assert rows["run"]["verdict"] == "confirmed", rows["run"]
    assert not rows["run"]["how"].startswith("train("), rows["run"]


def test_targets_get_the_shape_that_a_loss_asks_for(tmp_path: Path) -> None:
    assert wanted("Target size (torch.Size([2])) must be the same as input size (torch.Size([2, 5]))") == (2, 5)
    assert wanted("Expected 4 but got 3") is None
    rows = reached(tmp_path, labels="""
        import torch
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(6), torch.nn.ReLU(), torch.nn.Linear(6, 5))
        options = type("Options", (), {"img_size": 16, "channels": 3})()
        loader = torch.utils.data.DataLoader(open("data.bin", "rb").read())
        for pictures, attributes in loader:
            torch.nn.functional.binary_cross_entropy_with_logits(net(pictures), attributes).backward()
    """)
    assert rows["labels"]["verdict"] == "confirmed", rows["labels"]


def test_sides_of_images_are_made_smaller_together(tmp_path: Path) -> None:
    rows = reached(tmp_path, mask="""
        import argparse
        import torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--image_size", type=int, default=256)
        parser.add_argument("--mask_size", type=int, default=128)
        parser.add_argument("--steps", type=int, default=10 ** 9)
        options = parser.parse_args()
        if options.image_size > 100:
            raise SystemExit("too slow here")
        scale = torch.ones((), requires_grad=True)
        for step in range(options.steps):
            at = torch.randint(options.image_size - options.mask_size, ())
            part = torch.ones(options.image_size)[at : at + options.mask_size]
            (scale * part.reshape(options.image_size // 2)).sum().backward()
    """)
    assert rows["mask"]["verdict"] == "confirmed", rows["mask"]


def test_a_script_that_ends_in_its_own_error_is_counted_apart(tmp_path: Path) -> None:
    loop = "import torch\nx = torch.ones(1, requires_grad=True)\nfor _ in range(3):\n    (x * {}).sum().backward()\n"
    rows = reached(tmp_path, forgotten=loop.format("nowhere"), gone=loop.format("torch.absent_part(x)"),
                   elsewhere="from no_such_package import *\n" + loop.format("nowhere"),
                   optional="import os\nif 'TL_NAME' in os.environ:\n    nowhere = 1\n" + loop.format("nowhere"))
    assert rows["forgotten"]["why"].startswith("it ends in its own error: NameError: name 'nowhere'")
    assert rows["gone"]["why"].startswith("it ends in its own error: AttributeError")
    assert "own error" not in rows["elsewhere"]["why"] + rows["optional"]["why"]
    assert all(row["verdict"] == "cannot-tell" for row in rows.values())
    tried = [Tried("loops", row["path"], row["name"], cannot_tell(row["why"])) for row in rows.values()]
    text = section("loops", tried)
    assert "without those that end in an error of their own: 0 of 2 (0%)" in text
    assert Reach(tried).of("loops") == tried


def test_what_was_missing_before_an_error_is_named(tmp_path: Path) -> None:
    rows = reached(tmp_path, worlds="""
        import torch
        import no_such_package
        world = no_such_package.World()
        assert isinstance(world, list), "a list of places is needed"
        for place in world:
            place.backward()
    """)
    assert "a list of places" in rows["worlds"]["why"] and "`no_such_package` is not" in rows["worlds"]["why"]
    assert rows["worlds"]["next_step"] == "install no_such_package beside torchlint"


def test_an_error_of_made_up_data_is_not_the_codes_own() -> None:
    space = Namespace("def use(x):\n    return x.missing\n", "faults_case.py")
    use: Any = space.get("use")
    for action in (lambda: use(3), lambda: undefined, lambda: [][0]):  # type: ignore[name-defined]  # noqa: F821
        with pytest.raises((AttributeError, NameError, IndexError)) as caught:
            action()  # type: ignore[no-untyped-call]
        assert not own_fault(caught.value, space)


def test_a_loop_may_close_the_streams_and_train_through_a_wrapper(tmp_path: Path) -> None:
    rows = reached(tmp_path, closing="""
        import sys
        import torch
        x = torch.ones(1, requires_grad=True)
        for _ in range(5):
            x.sum().backward()
            sys.stdout.close()
            sys.stdout = None
    """, helper="""
        class Helper:
            def backward(self, loss):
                self.scaled(loss)
            def scaled(self, loss):
                loss.backward()
    """, wrapped="""
        import torch
        from helper import Helper
        x = torch.ones(1, requires_grad=True)
        helper = Helper()
        for _ in range(5):
            helper.backward(x.sum())
    """)
    assert {name: row["verdict"] for name, row in rows.items()} == {"closing": "confirmed", "wrapped": "confirmed"}


def test_findings_in_a_program_that_closes_its_output_are_judged(tmp_path: Path) -> None:
    (tmp_path / "closing.py").write_text(textwrap.dedent("""
        import sys
        import torch
        net = torch.nn.Linear(2, 1)
        print("training")
        sys.stdout.close()
        total = 0
        for _ in range(20):
            loss = net(torch.randn(4, 2)).sum()
            loss.backward()
            total += loss
    """))
    options = ["--select", "TL201", "--isolated", "--no-cache", "--output-format", "json"]
    run = CliRunner().invoke(main, ["confirm", *options, str(tmp_path)])
    (found,) = json.loads(run.stdout)["results"]
    assert found["verdict"] == "confirmed", found


def test_code_for_several_ranks_with_gpus_finds_itself_to_be_the_first(tmp_path: Path) -> None:
    rows = reached(tmp_path, ranks="""
        import os, sys
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        if torch.accelerator.device_count() < 4:
            sys.exit("four GPUs are needed")
        size = int(os.environ["WORLD_SIZE"])
        assert size % 2 == 0
        dist.init_process_group("nccl")
        kind = torch.accelerator.current_accelerator().type
        mesh = init_device_mesh(kind, (size // 2, 2), mesh_dim_names=("data", "parts"))
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).to(kind)
        parallelize_module(net, mesh["parts"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        whole = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
        for _ in range(3):
            whole(net(torch.randn(4, 8, device=kind))).sum().backward()
            dist.barrier()
        dist.destroy_process_group()
    """)
    assert rows["ranks"]["verdict"] == "confirmed", rows["ranks"]
    assert rows["ranks"]["how"].endswith("as the first of 4 ranks")


def test_remote_calls_are_made_here(tmp_path: Path) -> None:
    rows = reached(tmp_path, remote="""
        import torch
        import torch.distributed.autograd as passes
        import torch.distributed.rpc as rpc
        from torch.distributed.optim import DistributedOptimizer
        from torch.distributed.rpc import RRef
        class Part(torch.nn.Module):
            def __init__(self, width):
                super().__init__()
                self.fc = torch.nn.Linear(width, width)
            def forward(self, x):
                return self.fc(x)
            def references(self):
                return [RRef(item) for item in self.parameters()]
        def scaled(reference, factor):
            return reference.to_here() * factor
        def train():
            first, second = (rpc.remote(f"worker{number}", Part, args=(4,)) for number in (1, 2))
            optimizer = DistributedOptimizer(torch.optim.SGD, first.rpc_sync().references(), lr=0.1)
            for _ in range(5):
                with passes.context() as context:
                    x = RRef(torch.randn(3, 4))
                    loss = rpc.rpc_sync(first.owner(), scaled, args=(x, 2.0))
                    loss = second.rpc_async().forward(first.rpc_sync().forward(loss)).wait().sum()
                    passes.backward(context, [loss])
                    optimizer.step(context)
        def run(rank, size):
            rpc.init_rpc("trainer", rank=rank, world_size=size)
            train()
            rpc.shutdown()
        if __name__ == "__main__":
            torch.multiprocessing.spawn(run, args=(3,), nprocs=3)
    """)
    assert rows["remote"]["verdict"] == "confirmed", rows["remote"]


def test_environments_come_in_vectors_with_wrappers_and_screens(tmp_path: Path) -> None:
    rows = reached(tmp_path, agent="""
        from dataclasses import dataclass
        import gymnasium as gym
        import numpy as np
        import torch
        import tyro
        @dataclass
        class Args:
            total_timesteps: int = 10 ** 7
            learning_starts: int = 10 ** 5
            num_envs: int = 2
        def make(name):
            return lambda: gym.wrappers.RecordEpisodeStatistics(gym.wrappers.GrayScaleObservation(gym.make(name)))
        args = tyro.cli(Args)
        envs = gym.vector.SyncVectorEnv([make("BreakoutNoFrameskip-v4") for _ in range(args.num_envs)])
        assert isinstance(envs.single_action_space, gym.spaces.Discrete)
        net = torch.nn.Linear(int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n))
        seen, _ = envs.reset(seed=1)
        for step in range(args.total_timesteps):
            values = net(torch.as_tensor(seen).flatten(1) / 255.0)
            seen, rewards, ended, cut, infos = envs.step(values.argmax(1).numpy())
            if step > args.learning_starts:
                (values.max(1).values - torch.as_tensor(rewards)).pow(2).mean().backward()
    """)
    assert rows["agent"]["verdict"] == "confirmed", rows["agent"]


def test_models_that_give_their_loss_and_batches_of_named_parts(tmp_path: Path) -> None:
    rows = reached(tmp_path, tuned="""
        def tune(model, loader, optimizer, device):
            for batch in loader:
                batch = {name: part.to(device) for name, part in batch.items()}
                outputs = model(**batch)
                outputs.loss.backward()
                optimizer.step()
    """, parts="""
        def fit(model, train_loader, optimizer):
            for batch in train_loader:
                for key in batch.keys():
                    batch[key] = batch[key].cpu()
                output = model(input_ids=batch["source_ids"], attention_mask=batch["source_mask"])
                output["loss"].backward()
                optimizer.step()
    """)
    assert {name: row["verdict"] for name, row in rows.items()} == {"tuned": "confirmed", "parts": "confirmed"}


def test_options_take_a_value_that_the_code_compares_them_with_and_tables_have_columns(tmp_path: Path) -> None:
    rows = reached(tmp_path, chosen="""
        import argparse, gzip, sys
        import numpy as np
        import torch
        def network(name):
            if name == "wide":
                return torch.nn.Linear(8, 1)
            elif name == "deep":
                return torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Sigmoid())
            sys.exit("there is no such network")
        parser = argparse.ArgumentParser()
        parser.add_argument("--name", type=str, required=True)
        net = network(parser.parse_args().name)
        table = np.loadtxt("values.csv.gz", delimiter=",", dtype=np.float32)
        with gzip.open("more.csv.gz", "rt") as file:
            assert len(file.read().splitlines()) > 9
        x, y = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, [-1]])
        for _ in range(4):
            (net(x) - y).pow(2).mean().backward()
    """)
    assert rows["chosen"]["verdict"] == "confirmed", rows["chosen"]


def test_tests_that_are_given_a_class_by_their_parameters_are_run(tmp_path: Path) -> None:
    rows = reached(tmp_path, trainers="""
        import torch
        class Base:
            def __init__(self, plan):
                self.plan = plan.steps["train"]
        class Slow(Base):
            def fit(self):
                weight = torch.ones(1, requires_grad=True)
                for _ in range(self.plan):
                    weight.sum().backward()
    """, test_trainers="""
        import types
        import pytest
        from trainers import Base, Slow
        @pytest.mark.parametrize("kind", [Base, Slow])
        def test_fit(kind):
            kind(types.SimpleNamespace(steps={"train": 4})).fit()
    """)
    assert rows["trainers"]["how"] == "through test_fit() of test_trainers.py with Slow", rows["trainers"]


def test_a_script_that_tries_its_training_does_so_in_every_run(tmp_path: Path) -> None:
    rows = reached(tmp_path, tries="""
        import os
        import torch
        def train():
            x = torch.ones(1, requires_grad=True)
            for name in os.listdir("pictures"):
                (x * len(name)).sum().backward()
        if __name__ == "__main__":
            try:
                train()
            except MemoryError:
                print("too large")
    """)
    assert rows["tries"]["verdict"] == "confirmed", rows["tries"]


def test_data_sets_of_images_have_the_older_names_of_their_parts(tmp_path: Path) -> None:
    rows = reached(tmp_path, digits="""
        import torch
        import torchvision
        digits = torchvision.datasets.MNIST("mnist", train=False)
        x, y = digits.test_data[:8].reshape(8, -1) / 255.0, digits.test_labels[:8]
        net = torch.nn.Linear(784, 10)
        for _ in range(4):
            torch.nn.functional.cross_entropy(net(x), y).backward()
    """)
    assert rows["digits"]["verdict"] == "confirmed", rows["digits"]
