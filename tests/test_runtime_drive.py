"""Ways to run code: as its file calls it, through its callers, as a script, with made-up arguments."""
from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import nn

from runtime_check.drive import Drive, build_function_class, build_module, drives
from runtime_check.extract import Namespace, target_at
from runtime_check.made import reaches
from runtime_check.modules import CannotBuild
from runtime_check.onerank import one_rank
from runtime_check.slices import NotReached
from torchlint.cli import main

torch.set_num_threads(1)


def dedent(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def line_of(text: str, mark: str = "#!") -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


def ways(text: str, limit: int = 20, budget_s: float = 2.0) -> tuple[Namespace, list[Drive]]:
    """The drives for the line that ends in `#!`."""
    text = dedent(text)
    space = Namespace(text, "driven_case.py")
    found = drives(space, target_at(text, line_of(text)), budget_s=budget_s)
    return space, [drive for _, drive in zip(range(limit), found, strict=False)]


def reached(text: str, budget_s: float = 2.0) -> Drive:
    """The first drive that reaches the marked line."""
    space, found = ways(text, budget_s=budget_s)
    line = line_of(space.text)
    return next(drive for drive in found if reaches(drive.run, space.path, line))


# Call sites


def test_the_call_in_the_main_block_comes_first_with_only_what_it_needs() -> None:
    _, found = ways("""
        import torch
        def scale(x, factor):
            return x * factor  #!
        if __name__ == "__main__":
            seen = []
            seen.append(open("no/such/file"))
            x = torch.ones(2)
            x.mul_(3)
            factor = 2
            print(scale(x, factor), seen)
    """)
    assert found[0].label == "as called on line 10"
    assert found[0].run().tolist() == [2.0, 2.0] or found[0].run().tolist() == [6.0, 6.0]  # type: ignore[attr-defined]


def test_arguments_alone_can_be_had_without_the_call() -> None:
    _, found = ways("""
        def explode(count, unit="s"):
            raise ValueError(count)  #!
        explode(3, unit="m")
    """)
    assert found[0].prepare is not None
    given = found[0].prepare()
    assert (given.args, given.kwargs) == ((3,), {"unit": "m"})
    with pytest.raises(ValueError, match="3"):
        found[0].run()


def test_a_call_inside_loops_and_with_blocks_keeps_them() -> None:
    drive = reached("""
        import torch
        def step(x, weight):
            return (x * weight).sum()  #!
        def main(count=3):
            weight = torch.ones(2, requires_grad=True)
            for epoch in range(count):
                with torch.no_grad():
                    for x in torch.arange(4.0).reshape(2, 2):
                        loss = step(x, weight)
                print(loss)
    """)
    assert drive.label == "as called on line 9"
    assert not drive.run().requires_grad  # type: ignore[attr-defined]


def test_a_condition_that_is_false_is_taken_as_true_in_a_second_way() -> None:
    _, found = ways("""
        def save(name):
            return name  #!
        def main(verbose=False):
            if verbose:
                save("model")
    """)
    with pytest.raises(NotReached):
        found[0].run()
    assert found[1].label == "as called on line 5, with its conditions taken as true"
    assert found[1].run() == "model"


def test_arguments_are_followed_through_the_callers() -> None:
    drive = reached("""
        import torch
        def inner(a, b):
            return a + b  #!
        def outer(a, scale=2):
            b = a * scale
            return inner(a, b)
        def main():
            outer(torch.ones(1))
    """)
    assert drive.label == "as called on line 6 from line 8"
    assert drive.run().item() == 3.0  # type: ignore[attr-defined]


def test_forward_is_reached_through_the_call_of_an_instance() -> None:
    drive = reached("""
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.fc = nn.Linear(width, 1)
            def forward(self, x):
                return self.fc(x)  #!
        class Trainer:
            def __init__(self):
                self.net = Net(3).eval()
            def fit(self, batches):
                for x in batches:
                    self.net(x)
        Trainer().fit([torch.ones(2, 3)])
    """)
    assert drive.label == "as called on line 14 from line 15"
    assert drive.run().shape == (2, 1)  # type: ignore[attr-defined]


def test_super_calls_and_self_work_in_a_slice() -> None:
    drive = reached("""
        class Base:
            def width(self): return 4
        class Child(Base):
            def width(self):
                size = super().width()
                return double(size)
        def double(n):
            return 2 * n  #!
        Child().width()
    """)
    assert drive.run() == 8


def test_every_run_starts_afresh_and_seeded() -> None:
    _, found = ways("""
        import torch
        history = []
        def note(value):
            history.append(value)  #!
            return len(history), value
        note(torch.rand(1))
    """)
    first, second = found[0].run(), found[0].run()
    assert first == second and first[0] == 1  # type: ignore[index]


def test_a_generator_is_run_through_and_its_consumer_comes_first() -> None:
    _, found = ways("""
        import torch
        def batches(count):
            for index in range(count):
                yield index  #!
        def total():
            return sum(batches(3))
        batches(2)
    """)
    assert found[0].label == "through total()" and found[0].run() == 3
    direct = next(drive for drive in found if drive.label == "as called on line 7")
    assert direct.run() == [0, 1]


# Other files


def test_calls_in_the_projects_tests_are_found(tmp_path: Path) -> None:
    for name, text in {
        "pyproject.toml": "",
        "src/nets/__init__.py": "from .core import Net",
        "src/nets/core.py": """
            from torch import nn
            class Net(nn.Module):
                def __init__(self, settings):
                    super().__init__()
                    self.fc = nn.Linear(settings["in"], settings["out"])
                def forward(self, batch):
                    return self.fc(batch["features"].flatten(1))  #!
        """,
        "tests/test_nets.py": """
            import pytest
            import torch
            from nets import Net as Network
            @pytest.fixture
            def settings():
                return {"in": 6, "out": 2}
            @pytest.mark.parametrize("rows, columns", [(2, 3), (3, 2)])
            def test_shape(settings, rows, columns):
                net = Network(settings)
                assert net({"features": torch.ones(5, rows, columns)}).shape == (5, 2)
        """,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
    path = tmp_path / "src/nets/core.py"
    space = Namespace(path.read_text(), str(path))
    found = list(drives(space, target_at(space.text, line_of(space.text)), budget_s=0.5))
    assert found[0].label.startswith("through test_shape() of ") and "test_nets.py" in found[0].label
    assert reaches(found[0].run, space.path, line_of(space.text))


# Scripts


def test_a_script_runs_with_default_options_and_without_its_files() -> None:
    drive = reached("""
        import argparse
        import torch
        from torch.utils.data import DataLoader
        from torchvision import datasets, transforms
        parser = argparse.ArgumentParser()
        parser.add_argument("folder")
        parser.add_argument("--epochs", type=int, required=True)
        opt = parser.parse_args()
        data = datasets.MNIST(opt.folder, transform=transforms.Compose([transforms.ToTensor()]), download=True)
        net = torch.nn.Linear(784, 10)
        for epoch in range(opt.epochs):
            for x, y in DataLoader(data, batch_size=32):
                loss = torch.nn.functional.cross_entropy(net(x.flatten(1)), y)
                loss.backward()  #!
    """)
    assert drive.label == "the file run as a script"


def test_data_that_cannot_be_read_is_made_up_to_fit_the_models_of_the_script() -> None:
    space, found = ways("""
        import torch
        from torch import nn
        def read(name):
            return torch.load(name)
        loader = read("no/such/data.pt")
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
        net(torch.zeros(1, 3, 64, 64))
        total = 0
        for images, labels in loader:
            total += nn.functional.cross_entropy(net(images), labels)  #!
        total.backward()
    """)
    assert found[0].kind == "script"
    found[0].run()
    assert space.globals["total"].grad_fn is not None
    assert any("`loader` of line 5 is made up (FileNotFoundError" in text for text in space.skipped)


def test_small_sizes_are_tried_for_a_heavy_script() -> None:
    _, found = ways("""
        import torch
        n_embd = 4096
        layers = [torch.nn.Linear(n_embd, n_embd) for _ in range(2)]
        out = layers[0](torch.ones(1, n_embd))
        out.sum().backward()  #!
    """)
    assert [drive.label for drive in found][:2] == [
        "the file run as a script, with small sizes", "the file run as a script",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_cuda_calls_stay_on_the_cpu_where_there_is_none() -> None:
    _, found = ways("""
        import torch
        def run():
            net = torch.nn.Linear(2, 1).cuda()
            x = torch.ones(1, 2, device="cuda").to(torch.device("cuda:0"))
            torch.cuda.synchronize()
            return net(x).device.type  #!
    """)
    assert found[0].run() == "cpu"


# Made-up arguments


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_code_for_many_processes_and_gpus_finds_itself_alone_on_the_cpu() -> None:
    text = """
        import os
        import torch
        import torch.distributed as dist
        import torch.multiprocessing as mp
        from torch.nn.parallel import DistributedDataParallel as DDP
        def work(rank, world_size, epochs):
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            assert "RANK" not in os.environ and os.environ.get("WORLD_SIZE") is None
            dist.init_process_group("nccl", rank=rank, world_size=world_size)
            model = DDP(torch.nn.Linear(4, 2).to(rank), device_ids=[rank])
            for _ in range(epochs):
                loss = model(torch.randn(3, 4).to(rank)).type(torch.cuda.FloatTensor).sum()
                loss.backward()
                dist.all_reduce(loss.detach())
            seen.append((epochs, dist.get_world_size(), dist.get_backend()))  #!
            dist.destroy_process_group()
        seen = []
        if __name__ == "__main__":
            mp.spawn(work, args=(torch.cuda.device_count(), 3), nprocs=torch.cuda.device_count())
    """
    space, found = ways(text)
    drive = next(item for item in found if item.kind == "script")
    before = os._Environ.__getitem__
    drive.run()
    assert space.globals["seen"] == [(3, 1, "gloo")]
    assert "RANK" not in os.environ
    assert os._Environ.__getitem__ is before and not torch.distributed.is_initialized()


def test_classes_keep_their_number_where_sizes_are_made_small() -> None:
    space, found = ways("""
        import argparse
        import torch
        class Config:
            def __init__(self, width, depth):
                self.width = width
        parser = argparse.ArgumentParser()
        parser.add_argument("--n_classes", type=int, default=10)
        parser.add_argument("--hidden_dim", type=int, default=4096)
        options = parser.parse_args([])
        config = Config(width=4096, depth=2)
        head = torch.nn.Linear(options.hidden_dim + config.width, options.n_classes)  #!
    """)
    small = next(item for item in found if item.label.endswith("small sizes"))
    small.run()
    head = space.globals["head"]
    assert head.out_features == 10 and head.in_features < 1000


def test_options_that_ifs_ask_for_are_given_too() -> None:
    space, found = ways("""
        import argparse
        import torch
        def export(path):
            seen.append(path)  #!
        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--export")
            parser.add_argument("--resume")
            parser.add_argument("--levels", type=int)
            parser.add_argument("--count", type=int, default=5000)
            parser.add_argument("--fast", action="store_true")
            parser.add_argument("--penalty", type=float, default=0.0)
            options = parser.parse_args()
            if options.resume:
                torch.load(options.resume)
            if options.fast and options.penalty:
                saved = [options.levels, options.count]
                seen.extend(saved)
            if options.export:
                export("model.pt")
        seen = []
        main()
    """)
    labels = [drive.label for drive in found]
    by_label = dict(zip(labels, found, strict=True))
    by_label["the file run as a script, with its options set"].run()
    assert space.globals["seen"] == [None, 64, "model.pt"], "what no `if` asks for is not given"
    by_label["the file run as a script, with its options and files given"].run()
    assert space.globals["seen"] == [None, 64, "model.pt"], "a checkpoint that is not there is one of nothing done"
    by_label["the file run as a script"].run()
    assert space.globals["seen"] == []


def test_commands_and_options_that_exclude_each_other_are_given() -> None:
    space, found = ways("""
        import argparse
        def work(options):
            seen.append((options.command, options.steps, options.data, options.fake, options.load))  #!
        def main():
            parser = argparse.ArgumentParser()
            commands = parser.add_subparsers(dest="command", required=True)
            export = commands.add_parser("export")
            export.set_defaults(function=print)
            train = commands.add_parser("train")
            train.add_argument("data")
            train.add_argument("--steps", type=int, default=3)
            source = train.add_mutually_exclusive_group(required=True)
            source.add_argument("--load")
            source.add_argument("--fake", action="store_true")
            train.set_defaults(function=work)
            options = parser.parse_args()
            options.function(options)
            given = parser.parse_args(["train", "mine", "--load", "file"])
            work(given)
        seen = []
        main()
    """)
    next(drive for drive in found if drive.label == "the file run as a script").run()
    assert space.globals["seen"] == [("train", 3, "example", True, None), ("train", 3, "mine", False, "file")]


def test_environments_are_there_without_their_package() -> None:
    for action, name in (("env.action_space.n - 1", "CartPole-v1"), ("env.action_space.sample()", "Pendulum-v1")):
        space, found = ways(f"""
            import gymnasium as gym
            class Longer(gym.Wrapper[object, object, object, object]):
                def step(self, action):
                    seen, reward, ended, cut, info = self.env.step(action)
                    return seen, reward * 2, ended, cut, info
            def play(env):
                seen, _ = env.reset(seed=1)
                total, ended = 0.0, False
                while not ended:
                    seen, reward, ended, cut, _ = env.step({action})
                    total += reward
                assert env.observation_space.shape == seen.shape and isinstance(env, gym.Env)
                totals.append(total)  #!
            totals = []
            play(Longer(gym.make("{name}")))
        """)
        found[0].run()
        assert space.globals["totals"] == [20.0]


def test_a_training_function_gets_objects_that_belong_together() -> None:
    drive = reached("""
        import torch
        from torch import nn
        import torch.nn.functional as F
        class Digits(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(1, 4, 3)
                self.fc = nn.Linear(4, 10)
            def forward(self, x):
                return F.log_softmax(self.fc(self.conv(x).mean((2, 3))), dim=1)
        def train(args, model, device, train_loader, optimizer, epoch, writer=None):
            model.train()
            moved = [p.detach().clone() for p in model.parameters()]
            for step, (data, target) in enumerate(train_loader):
                data, target = data.to(device), target.to(device)
                optimizer.zero_grad()
                loss = F.nll_loss(model(data), target)
                loss.backward()
                optimizer.step()
                if step % args.log_interval == 0:
                    print(epoch, loss.item())  #!
            return [bool((a != b).any()) for a, b in zip(moved, model.parameters())]
    """)
    assert drive.kind == "made"
    assert all(drive.run())  # type: ignore[arg-type]


def test_a_failure_on_the_line_of_interest_is_a_way_too() -> None:
    drive = reached("""
        import torch
        from torch import nn
        class Heads(nn.Module):
            def __init__(self, dim, heads):
                super().__init__()
                self.heads = heads
                self.fc = nn.Linear(dim, dim)
            def forward(self, x):
                b, t, d = x.shape
                y = self.fc(x).view(b, t, self.heads, -1).transpose(1, 2)
                return y.view(b, t, d)  #!
    """)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        drive.run()


def test_a_step_that_needs_more_than_the_constructor_is_reached_through_its_caller() -> None:
    drive = reached("""
        import torch
        from torch import nn
        class Trainer:
            def __init__(self, model, optimizer, loader):
                self.model, self.optimizer, self.loader = model, optimizer, loader
            def setup(self):
                self.criterion, self.history = nn.MSELoss(), []
            def step(self, batch):
                x, y = batch
                loss = self.criterion(self.model(x), y)
                self.history.append(loss)  #!
                return loss
            def fit(self, epochs):
                self.setup()
                for _ in range(epochs):
                    for batch in self.loader:
                        self.optimizer.zero_grad()
                        self.step(batch).backward()
                        self.optimizer.step()
                return len(self.history)
    """, budget_s=8.0)
    assert ".fit(" in drive.label and drive.run() == 4


def test_methods_of_plain_classes_and_datasets_are_reached() -> None:
    drive = reached("""
        import torch
        from torch.utils.data import Dataset
        class Clips(Dataset):
            def __init__(self, clips, gain=0.5):
                self.clips, self.gain = clips, gain
            def __len__(self): return len(self.clips)
            def __getitem__(self, k):
                clip = self.clips[k]
                clip *= self.gain  #!
                return clip
        def loudness():
            return [clip.sum().item() for clip in torch.utils.data.DataLoader(Clips(torch.ones(4, 3)))]
    """)
    assert drive.kind in ("caller", "made")


def test_a_drive_that_cannot_be_made_says_why() -> None:
    _, found = ways("""
        import package_that_is_not_there
        def score(text):
            tokens = package_that_is_not_there.tokenize(text)
            return len(tokens)  #!
    """)
    with pytest.raises(CannotBuild, match="`package_that_is_not_there` is not installed"):
        found[-1].run()


def test_a_factory_given_as_a_hint_wins() -> None:
    text = "def f(secret):\n    return secret.value\n"
    found = drives(Namespace(text, "hinted.py"), target_at(text, 2), hints={"f": lambda: "from the hint"})
    drive = next(found)
    assert (drive.kind, drive.run()) == ("hint", "from the hint")


# Modules and Functions


MODULES = {
    "sequence": """
        class Block(nn.Module):
            def __init__(self, dim: int, heads: int, dropout: float, act_layer=nn.GELU):
                super().__init__()
                assert dim % heads == 0, "dim must be divisible by heads"
                self.attn = nn.MultiheadAttention(dim, heads, dropout, batch_first=True)
                self.act = act_layer()
            def forward(self, x, key_padding_mask=None):
                b, n, d = x.shape
                return self.act(self.attn(x, x, x, key_padding_mask=key_padding_mask)[0].view(b, n, d))
    """,
    "image classifier": """
        class Net(nn.Module):
            def __init__(self, num_classes):
                super().__init__()
                self.features = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2))
                self.fc = nn.Linear(8 * 6 * 6, num_classes)
            def forward(self, x):
                return self.fc(torch.flatten(self.features(x), 1))
    """,
    "tokens and a state": """
        class Tagger(nn.Module):
            def __init__(self, vocab_size, emb, hidden):
                super().__init__()
                self.emb = nn.Embedding(vocab_size, emb)
                self.rnn = nn.LSTM(emb, hidden, num_layers=2)
                self.out = nn.Linear(hidden, vocab_size)
            def forward(self, ids, state):
                y, state = self.rnn(self.emb(ids).transpose(0, 1), state)
                return self.out(y), state
    """,
    "configuration": """
        class ModelConfig:
            def __init__(self, n_embd=4096, n_head=32, block_size=8192, kind="plain"):
                self.n_embd, self.n_head, self.block_size, self.kind = n_embd, n_head, block_size, kind
        class Model(nn.Module):
            def __init__(self, config):
                super().__init__()
                assert config.n_embd % config.n_head == 0
                self.pos = nn.Parameter(torch.zeros(config.block_size, config.n_embd))
                self.fc = nn.Linear(config.n_embd, config.n_embd)
            def forward(self, x):
                return self.fc(x) + self.pos[: x.size(1)]
    """,
    "choice of strings": """
        class Pool(nn.Module):
            def __init__(self, kind, width):
                super().__init__()
                if kind == "max":
                    self.pool = nn.AdaptiveMaxPool1d(1)
                elif kind == "avg":
                    self.pool = nn.AdaptiveAvgPool1d(1)
                else:
                    raise ValueError(f"unknown kind {kind}")
                self.conv = nn.Conv1d(width, width, 3)
            def forward(self, signal):
                return self.pool(self.conv(signal)).squeeze(-1)
    """,
    "wrapped layer": """
        class PreNorm(nn.Module):
            def __init__(self, dim, fn):
                super().__init__()
                self.norm, self.fn = nn.LayerNorm(dim), fn
            def forward(self, x, **kwargs):
                return self.fn(self.norm(x), **kwargs) + x
    """,
    "blocks of the file": """
        class ResidualBlock(nn.Module):
            def __init__(self, n_in, n_out, stride=1):
                super().__init__()
                self.conv = nn.Conv2d(n_in, n_out, 3, stride, 1)
            def forward(self, x): return self.conv(x)
        class ResNet(nn.Module):
            def __init__(self, block, layers, n_classes=10):
                super().__init__()
                self.width = 4
                self.stem = nn.Conv2d(3, 4, 3, 1, 1)
                self.stages = nn.Sequential(*[self.stage(block, count) for count in layers])
                self.fc = nn.Linear(4, n_classes)
            def stage(self, block, count):
                return nn.Sequential(*[block(self.width, self.width) for _ in range(count)])
            def forward(self, x):
                return self.fc(self.stages(self.stem(x)).mean((2, 3)))
    """,
    "graph": """
        class GraphConv(nn.Module):
            def __init__(self, in_channels, out_channels):
                super().__init__()
                self.lin = nn.Linear(in_channels, out_channels)
            def forward(self, x, edge_index):
                row, col = edge_index
                out = torch.zeros_like(self.lin(x))
                return out.index_add(0, col, self.lin(x)[row])
    """,
    "two inputs of one size": """
        class Cross(nn.Module):
            def __init__(self, query_dim, context_dim):
                super().__init__()
                self.q, self.k = nn.Linear(query_dim, 24), nn.Linear(context_dim, 24)
            def forward(self, x, context):
                return torch.softmax(self.q(x) @ self.k(context).transpose(-1, -2), dim=-1)
    """,
    "documented shape": '''
        class Mix(nn.Module):
            def __init__(self, sensors=6):
                super().__init__()
                self.mix = nn.Linear(sensors, 1)
            def forward(self, signals):
                """signals: (batch, sensors, time)"""
                return self.mix(torch.stack(signals.unbind(2), 1)).squeeze(-1)
    ''',
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_built_run_and_learn(name: str) -> None:
    text = "import torch\nfrom torch import nn\n" + dedent(MODULES[name])
    space = Namespace(text, "built_case.py")
    cls = next(item for item in space.names() if text.rfind(f"class {item}(") == text.rfind("class "))
    built = next(build_module(space, cls))
    assert built.call is not None, built.why
    out: Any = built.call()
    out = out[0] if isinstance(out, tuple) else out
    out.sum().backward()
    assert any(item.grad is not None for item in built.module.parameters())
    assert sum(item.numel() for item in built.module.parameters()) < 1_000_000


def test_a_module_as_the_file_itself_makes_and_calls_it() -> None:
    text = dedent("""
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.fc = nn.Linear(width, 1)
            def forward(self, x):
                return self.fc(x)
        if __name__ == "__main__":
            Net(3)(torch.ones(5, 3))
    """)
    built = next(build_module(Namespace(text, "called_case.py"), "Net"))
    assert built.label == "Net as called on line 10"
    assert isinstance(built.module, nn.Module) and built.call is not None
    assert built.call().shape == (5, 1)  # type: ignore[attr-defined]


def test_a_module_that_cannot_be_built_says_why() -> None:
    text = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        raise OSError('no weights')\n"
    with pytest.raises(CannotBuild, match=r"`Net`: OSError: no weights \(line 4 of unbuilt\.py\)"):
        next(build_module(Namespace(text, "unbuilt.py"), "Net"))


def test_functions_get_double_precision_leaves() -> None:
    text = dedent("""
        import torch
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight, factor, enabled):
                assert isinstance(factor, float) and isinstance(enabled, bool)
                ctx.save_for_backward(x, weight)
                ctx.factor, ctx.enabled = factor, enabled
                return x * weight * factor
            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad * weight * ctx.factor, grad * x * ctx.factor, None, None
    """)
    example = next(build_function_class(Namespace(text, "function_case.py"), "Scale"))
    x, weight, *_ = example.arguments()
    assert x.dtype == weight.dtype == torch.float64 and x.requires_grad and x.is_leaf
    assert torch.autograd.gradcheck(example.function.apply, example.arguments())


def test_functions_get_groups_modules_and_constants() -> None:
    text = dedent("""
        import torch
        import torch.distributed as dist
        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, group, layer):
                ctx.save_for_backward(x)
                parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, x, group=group)
                return layer(torch.cat(parts))
            @staticmethod
            def backward(ctx, grad):
                return grad, None, None
        class Distance(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                if ctx.needs_input_grad[1]:
                    raise RuntimeError("Distance cannot compute gradients with respect to scale")
                ctx.save_for_backward(x, scale)
                return x * scale.sum()
            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.saved_tensors[1].sum(), None
    """)
    space = Namespace(text, "groups.py")
    gathered = next(build_function_class(space, "Gather"))
    with one_rank():  # a call makes the group, which goes with this
        assert gathered.call().requires_grad
    assert not torch.distributed.is_initialized()
    x, scale = next(build_function_class(space, "Distance")).arguments()
    assert x.requires_grad and not scale.requires_grad


def test_a_function_whose_backward_fails_is_given_all_the_same() -> None:
    text = dedent("""
        import torch
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                return x * scale
            @staticmethod
            def backward(ctx, grad):
                return grad
    """)
    example = next(build_function_class(Namespace(text, "bad_function.py"), "Bad"))
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        example.call().sum().backward()


# The measurement


def test_reach_can_be_measured(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(dedent("""
        from torch import nn
        class Good(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.fc = nn.Linear(width, width)
            def forward(self, x):
                return self.fc(x)
        class Bad(nn.Module):
            def forward(self, x):
                raise NotImplementedError
        class Worse(nn.Module):
            def forward(self, x):
                raise NotImplementedError
    """))
    (tmp_path / "train.py").write_text(dedent("""
        import os
        import torch
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, grad):
                return grad * 2
        class Fused(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return torch.ops.mine.fused(x)
            @staticmethod
            def backward(ctx, grad):
                return grad
        def train(model, loader, optimizer):
            os.makedirs("made_here")
            total = 0
            for x, y in loader:
                loss = (model(x) - y).pow(2).mean()
                loss.backward()
                optimizer.step()
                total += loss
            return total
        def never(thing):
            for x in thing.open().frobnicate(7)[3].rows:
                x.backward()
    """))
    done = CliRunner().invoke(main, ["confirm", "--reach", "--isolated", str(tmp_path), "--output-format", "json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["summary"]["modules"] == {"tried": 3, "ran": 1, "built": 2}
    assert data["summary"]["functions"] == {"tried": 2, "ran": 1, "built": 0, "native": 1}
    assert data["summary"]["loops"] == {"tried": 2, "ran": 1, "built": 0}
    assert data["summary"]["findings"]["tried"] >= 1
    (bad,) = (row for row in data["tried"] if row["name"] == "Bad")
    assert bad["reason"] == "abstract classes"
    assert not (tmp_path / "made_here").exists() and not Path("made_here").exists()
    text = CliRunner().invoke(main, ["confirm", "--reach", "--isolated", str(tmp_path)]).stdout
    assert "3 Module classes: 1 ran forward (33%), 2 only built" in text
    assert "2 autograd Functions: 1 called (50%)\n  without those that need native kernels: 1 of 1 (100%)" in text
    named = (r"^ +2 abstract classes +[\w-]+/nets.py: Bad: .*NotImplementedError.*\n"
             r" +next: leave it: .*\n +also [\w-]+/nets.py: Worse$")
    assert re.search(named, text, re.M), text


def test_a_schedule_gives_numbers() -> None:
    text = dedent("""
        from collections.abc import Callable
        from torch import nn
        class Net(nn.Module):
            def __init__(self, width: int, schedule: Callable[[float], float]):
                super().__init__()
                assert 0 <= schedule(1.0) < 1
                self.fc = nn.Linear(width, width)
            def forward(self, x):
                return self.fc(x)
    """)
    assert next(build_module(Namespace(text, "scheduled.py"), "Net")).call is not None


def test_clipping_that_no_gradient_reaches_is_judged_with_a_lower_limit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent("""
        import torch
        from torch import nn
        def train(net, batches, optimizer):
            for x in batches:
                optimizer.zero_grad()
                loss = net(x).pow(2).mean()
                loss.backward()
                optimizer.step()
                nn.utils.clip_grad_norm_(net.parameters(), 1000.0)
        net = nn.Linear(4, 2)
        train(net, [torch.ones(3, 4)] * 4, torch.optim.SGD(net.parameters(), lr=0.1))
    """))
    words = ["--isolated", "--select", "TL507", "--output-format", "json"]
    done = CliRunner().invoke(main, ["confirm", *words, str(tmp_path)])
    (row,) = json.loads(done.stdout)["results"]
    assert row["verdict"] == "confirmed" and "half of each gradient" in json.dumps(row["evidence"]), row


def test_programs_that_end_in_the_same_error_are_compared_up_to_it(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(dedent("""
        import torch
        from torch.autograd import Variable
        weight = torch.ones(3, requires_grad=True)
        batch = Variable(torch.arange(3.0))
        loss = (weight * batch).sum()
        loss.backward()
        loss.backward()
    """))
    words = ["--isolated", "--select", "autograd-variable", "--output-format", "json"]
    done = CliRunner().invoke(main, ["confirm", *words, str(tmp_path)])
    (row,) = json.loads(done.stdout)["results"]
    assert row["verdict"] == "confirmed" and "both programs end alike: RuntimeError" in row["why"], row
