# ruff: noqa: E501 - a cell is one string, as it is typed
"""Typical user cells: the explored call, whether there is a backward, and the same behaviour as the bare cell."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from explorer.run.run import Run
from tests.compiler.broken import TORCH
from tests.explorer.entry.comparison import Comparison, plain

SETUP = """
import copy, functools, random, time
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first, self.norm = nn.Linear(3, width), nn.BatchNorm1d(width)
        self.drop, self.second = nn.Dropout(0.2), nn.Linear(width, 2)
    def forward(self, x):
        return self.second(self.drop(F.relu(self.norm(self.first(x)))))

class Output(dict):
    __getattr__ = dict.__getitem__

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, input_ids=None, labels=None):
        logits = self.net(input_ids)
        return Output(logits=logits, loss=None if labels is None else F.cross_entropy(logits, labels))
    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self(x).logits, y)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Trainer:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses = []
    def step(self, x, y):
        self.opt.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.opt.step()
        self.losses.append(loss.item())
        print("loss", loss.item())
        return loss

class Fitter:
    def fit(self, module, loader):
        opt = module.configure_optimizers()
        for batch in loader:
            loss = module.training_step(batch)
            opt.zero_grad()
            loss.backward()
            opt.step()

def batch(n=6):
    return torch.randn(n, 3)

def scale(x, by=2.0):
    return torch.sin(x) * by

def square_loss(out, target):
    return (out - target).square().mean()

def make_model(width=4):
    return Net(width)

class EMA:
    def __init__(self, model, decay=0.9):
        self.shadow, self.decay = copy.deepcopy(model), decay
    @torch.no_grad()
    def update(self, model):
        for mean, p in zip(self.shadow.parameters(), model.parameters()):
            mean.lerp_(p, 1 - self.decay)

class HFTrainer:
    def __init__(self, model, train_dataset, epochs=1):
        self.model, self.train_dataset, self.epochs = model, train_dataset, epochs
        self.optimizer, self.log_history = torch.optim.SGD(model.parameters(), lr=0.1), []
    def compute_loss(self, model, inputs):
        return model(**inputs)["loss"]
    def train(self):
        for _ in range(self.epochs):
            for ids, labels in DataLoader(self.train_dataset, batch_size=3):
                loss = self.compute_loss(self.model, {"input_ids": ids, "labels": labels})
                loss.backward()
                self.optimizer.step()
                self.model.zero_grad()
                self.log_history.append(round(loss.item(), 4))
        return self.log_history

class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.opt = torch.optim.Adam(self.policy.parameters())
    def act(self, obs):
        return torch.distributions.Categorical(logits=self.policy(obs)).sample()
    def update(self, obs, actions, returns):
        logp = torch.distributions.Categorical(logits=self.policy(obs)).log_prob(actions)
        loss = -(logp * returns).mean()
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        return loss.item()

def call_often(fn, n=3):
    for _ in range(n):
        fn()
    return n

def benchmark(net, v):
    start = time.perf_counter()
    net(v)
    return time.perf_counter() - start

def accuracy(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right

torch.manual_seed(0)
x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
target = torch.zeros(6, 2)
model, criterion = Net(), nn.CrossEntropyLoss()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
G, D = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
opt_g, opt_d = torch.optim.SGD(G.parameters(), lr=0.1), torch.optim.SGD(D.parameters(), lr=0.1)
classifier, agent = Classifier(), Agent()
trainer = Trainer(model)
"""


@dataclass(frozen=True)
class Written:
    """A cell, the explored callee, the titles of the compiled code, and whether there is a backward graph."""

    name: str
    code: str
    explored: str
    has_backward: bool = True
    inside: str = ""


STEP = """
opt.zero_grad()
loss = criterion(model(x), y)
loss.backward()
opt.step()
"""
WRITTEN = [
    Written("training step", STEP, "model"),
    Written("training step, output first", "opt.zero_grad()\nout = model(x)\nloss = criterion(out, y)\nloss.backward()\nopt.step()\nprint(loss.item())", "model"),
    Written("range loop", "for step in range(3):\n    opt.zero_grad()\n    loss = F.cross_entropy(model(x), y)\n    loss.backward()\n    opt.step()\n    print(step, loss.item())", "model"),
    Written("dataloader loop", "model.train()\nfor epoch in range(2):\n    for xb, yb in loader:\n        opt.zero_grad()\n        loss = criterion(model(xb), yb)\n        loss.backward()\n        opt.step()", "model"),
    Written("helper in the loop", "for _ in range(2):\n    xb = batch()\n    opt.zero_grad()\n    out = model(xb)\n    loss = square_loss(out, target)\n    loss.backward()\n    opt.step()", "model"),
    Written("helper beside the model", "xb = batch()\nmodel(xb)", "model"),
    Written("helper, then the model is made", "xb = batch()\nnet = make_model()\nnet(xb).sum().backward()", "net"),
    Written("helper as argument", "model(batch())", "model"),
    Written("function and sum", "z = scale(x)\nz.sum()", "scale", has_backward=False),
    Written("function, then the model's mode", "seen = []\ndef noted(v):\n    seen.append(len(v))\n    return v.sin()\nz = noted(x)\nmodel.eval()\nprint(seen)", "noted", has_backward=False),
    Written("function with gradient", "w = torch.ones(3, requires_grad=True)\nloss = scale(x * w).sum()\nloss.backward()\nw.grad", "scale"),
    Written("scheduler", "sched = torch.optim.lr_scheduler.StepLR(opt, 1)\nfor _ in range(2):\n    opt.zero_grad()\n    model(x).square().mean().backward()\n    opt.step()\n    sched.step()\nsched.get_last_lr()", "model"),
    Written("autocast and GradScaler", "scaler = torch.amp.GradScaler('cpu', enabled=False)\nopt.zero_grad()\nwith torch.autocast('cpu', dtype=torch.bfloat16):\n    loss = criterion(model(x), y)\nscaler.scale(loss).backward()\nscaler.step(opt)\nscaler.update()", "model"),
    Written("gradient accumulation", "opt.zero_grad()\nfor i, (xb, yb) in enumerate(loader):\n    (criterion(model(xb), yb) / 2).backward()\n    if (i + 1) % 2 == 0:\n        opt.step()\n        opt.zero_grad()", "model"),
    Written("gradient clipping", STEP.replace("opt.step()", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"), "model"),
    Written("trainer with a step", "trainer.step(x, y)", "model", inside="trainer.step"),
    Written("trainer in a loop", "for xb, yb in loader:\n    trainer.step(xb, yb)\ntrainer.losses", "model", inside="trainer.step"),
    Written("Lightning-like", "Fitter().fit(classifier, loader)", "classifier", inside="Fitter().fit"),
    Written("training_step by hand", "opt2 = classifier.configure_optimizers()\nloss = classifier.training_step((x, y))\nloss.backward()\nopt2.step()", "classifier.training_step"),
    Written("main()", "def main():\n    torch.manual_seed(1)\n    net = Net(8)\n    sgd = torch.optim.SGD(net.parameters(), lr=0.1)\n    for _ in range(2):\n        sgd.zero_grad()\n        loss = criterion(net(x), y)\n        loss.backward()\n        sgd.step()\n    return loss.item()\n\nif __name__ == '__main__':\n    print(main())", "net", inside="main"),
    Written("function that builds the model", "def run(v):\n    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())\n    return net(v).sum()\nrun(x).backward()", "net", inside="run"),
    Written("train and evaluate", "def train(net, n):\n    for _ in range(n):\n        opt.zero_grad()\n        criterion(net(x), y).backward()\n        opt.step()\ntrain(model, 2)\naccuracy(model, loader)", "model", inside="train"),
    Written("evaluate with a function", "accuracy(model, loader)", "model", has_backward=False, inside="accuracy"),
    Written("evaluate in the cell", "model.eval()\nwith torch.no_grad():\n    pred = model(x).argmax(1)\nprint((pred == y).float().mean())", "model", has_backward=False),
    Written("train, then evaluate in the cell", STEP + "model.eval()\nwith torch.no_grad():\n    model(x)", "model"),
    Written("inference_mode", "model.eval()\nwith torch.inference_mode():\n    out = model(x)\nout.shape", "model", has_backward=False),
    Written("GAN", "z = torch.randn(6, 2)\nopt_d.zero_grad()\nloss_d = D(x).mean() - D(G(z).detach()).mean()\nloss_d.backward()\nopt_d.step()\nopt_g.zero_grad()\nloss_g = -D(G(z)).mean()\nloss_g.backward()\nopt_g.step()", "D"),
    Written("encoder and decoder", "code = G(torch.randn(6, 2))\nout = D(code)\nout.sum().backward()", "D"),
    Written("kwargs, as transformers has them", "out = classifier(input_ids=x, labels=y)\nout.loss.backward()\nout.logits.shape", "classifier"),
    Written("unpacked batch as kwargs", "inputs = {'input_ids': x, 'labels': y}\nloss = classifier(**inputs)['loss']\nloss.backward()", "classifier"),
    Written("tuple of results", "a, (b, c) = model(x), (scale(x), 3)", "model"),
    Written("attribute and item targets", "class Box: pass\nbox, outs = Box(), {}\nbox.out = outs['y'] = model(x)", "model"),
    Written("list comprehension", "outs = [model(x + i) for i in range(2)]\ntorch.stack(outs).mean()", "model"),
    Written("sum of a generator", "total = sum(model(x * k).sum() for k in (1, 2))\ntotal.backward()", "model"),
    Written("map", "outs = list(map(model, [x, x + 1]))", "model", inside="map"),
    Written("partial", "double = functools.partial(scale, by=4.0)\nout = double(x)\nout.mean()", "double", has_backward=False),
    Written("lambda", "apply = lambda v: scale(v) + 1\nout = apply(x)\nout.max()", "apply", has_backward=False),
    Written("lambda around the model", "loss_of = lambda v: model(v).square().sum()\nloss_of(x).backward()", "loss_of"),
    Written("loss function around the model", "def loss_of(v, t):\n    return F.mse_loss(model(v), t)\nloss = loss_of(x, target)\nloss.backward()", "loss_of"),
    Written("try and finally", "try:\n    out = model(x)\nfinally:\n    print('done')\nout.sum().backward()", "model"),
    Written("with a profiler", "with torch.autograd.set_detect_anomaly(True):\n    loss = model(x).sum()\n    loss.backward()", "model"),
    Written("if and else", "if x.shape[0] > 3:\n    out = model(x)\nelse:\n    out = scale(x)\nout.sum()", "model"),
    Written("while", "n = 0\nwhile n < 2:\n    loss = criterion(model(x), y)\n    loss.backward()\n    n += 1", "model"),
    Written("early break", "for i in range(5):\n    loss = model(x).square().mean()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n    if i == 1:\n        break", "model"),
    Written("random numbers after it", "torch.manual_seed(3)\nout = model(x)\nnoise, r = torch.rand(3), random.random()", "model"),
    Written("model defined in the cell", "class Tiny(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(3))\n    def forward(self, v):\n        return v * self.w\ntiny = Tiny()\nsgd = torch.optim.SGD(tiny.parameters(), lr=0.1)\nloss = tiny(x).sum()\nloss.backward()\nsgd.step()", "tiny"),
    Written("hook", "seen = []\nhandle = model.first.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))\nmodel(x)\nhandle.remove()\nseen", "model"),
    Written("criterion object", "loss = criterion(model(x), y)\nprint(f'{loss:.3f}')", "model"),
    Written("learning rate by the batch, then validation", "sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=4)\nfor epoch in range(2):\n    model.train()\n    for xb, yb in loader:\n        opt.zero_grad(set_to_none=True)\n        loss = criterion(model(xb), yb)\n        loss.backward()\n        opt.step()\n        sched.step()\n    model.eval()\n    with torch.no_grad():\n        print(f'epoch {epoch}: {loss:.4f} {criterion(model(x), y):.4f}')", "model"),
    Written("GradScaler that scales, over two batches", "scaler = torch.amp.GradScaler('cpu', init_scale=8.0)\nfor i, (xb, yb) in enumerate(loader):\n    with torch.autocast('cpu', dtype=torch.bfloat16):\n        loss = criterion(model(xb), yb) / 2\n    scaler.scale(loss).backward()\n    if i % 2:\n        scaler.unscale_(opt)\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        scaler.step(opt); scaler.update(); opt.zero_grad()\nscaler.get_scale()", "model"),
    Written("moving average of the model", "ema = EMA(model)\nfor _ in range(2):\n    opt.zero_grad()\n    criterion(model(x), y).backward()\n    opt.step()\n    ema.update(model)\nema.shadow.eval()\nwith torch.no_grad():\n    print(ema.shadow(x).sum().item())", "model"),
    Written("Trainer as transformers has it", "HFTrainer(classifier, TensorDataset(x, y), epochs=2).train()", "classifier", inside="HFTrainer(classifier, TensorDataset(x, y), epochs=2).train"),
    Written("teacher and student", "teacher = Net(8).eval()\nfor _ in range(2):\n    with torch.no_grad():\n        aim = teacher(x).softmax(-1)\n    loss = F.kl_div(model(x).log_softmax(-1), aim, reduction='batchmean')\n    opt.zero_grad(); loss.backward(); opt.step()", "model"),
    Written("agent that updates itself", "obs = torch.randn(5, 3)\nactions = agent.act(obs)\nagent.update(obs, actions, torch.ones(5))", "self.policy", inside="agent.update"),
    Written("GAN loop", "for _ in range(2):\n    fake = G(torch.randn(6, 2))\n    opt_d.zero_grad()\n    (F.softplus(D(fake.detach())).mean() + F.softplus(-D(x)).mean()).backward()\n    opt_d.step()\n    opt_g.zero_grad()\n    F.softplus(-D(fake)).mean().backward()\n    opt_g.step()", "D"),
    Written("autograd.grad", "out = model(x)\ngrads = torch.autograd.grad(out.sum(), list(model.parameters()))\n[g.shape for g in grads]", "model"),
    Written("weights by hand", "w, b = torch.zeros(3, 1, requires_grad=True), torch.zeros(1, requires_grad=True)\ndef predict(v):\n    return v @ w + b\nfor _ in range(3):\n    (predict(x) - 1).square().mean().backward()\n    with torch.no_grad():\n        for p in (w, b):\n            p -= 0.1 * p.grad\n            p.grad = None", "predict"),
    Written("generator of batches", "def batches(n):\n    for _ in range(n):\n        yield torch.randn(4, 3), torch.tensor([0, 1, 1, 0])\nfor xb, yb in batches(2):\n    loss = criterion(model(xb), yb)\n    opt.zero_grad(); loss.backward(); opt.step()", "model"),
    Written("generator that runs the model", "def predict(n):\n    for i in range(n):\n        yield model(x * i).argmax(1).tolist()\nlist(predict(2))", "model", inside="predict"),
    Written("await of a batch", "import asyncio\nasync def produce():\n    await asyncio.sleep(0)\n    return x\nmodel(await produce()).sum().backward()", "model"),
    Written("await of a step", "async def step(v):\n    loss = model(v).sum()\n    loss.backward()\n    return loss.item()\nawait step(x)", "model", inside="step"),
    Written("function given a lambda", "n = call_often(lambda: model(x), 4)", "model", inside="call_often"),
    Written("function given a loss", "best = call_often(lambda: criterion(target, y), 2)", "call_often", has_backward=False),
    Written("function that times the model", "took = benchmark(model, x) > 0", "model", inside="benchmark"),
    Written("evaluation with a decorator", "@torch.no_grad()\ndef evaluate(net):\n    net.eval()\n    return (net(x).argmax(1) == y).sum().item() / 6\nevaluate(model)", "model", has_backward=False, inside="evaluate"),
    Written("walrus in a condition", "while (loss := criterion(model(x), y)) > 100:\n    pass\nloss.backward()", "model"),
    Written("error that is caught", "try:\n    loss = criterion(model(x), y)\n    loss.backward()\nexcept RuntimeError as error:\n    print('failed', error)\nelse:\n    opt.step()", "model"),
    Written("class with the whole experiment", "class Experiment:\n    def __init__(self):\n        torch.manual_seed(0)\n        self.net = Net()\n        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)\n    def run(self, steps=2):\n        for _ in range(steps):\n            self._step()\n        return steps\n    def _step(self):\n        self.opt.zero_grad()\n        F.cross_entropy(self.net(x), y).backward()\n        self.opt.step()\nExperiment().run()", "self.net", inside="Experiment().run"),
    Written("closure and LBFGS", "lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)\ndef closure():\n    lbfgs.zero_grad()\n    loss = criterion(model(x), y)\n    loss.backward()\n    return loss\nlbfgs.step(closure)", "model", inside="lbfgs.step"),
]  # fmt: skip

TRACED = [
    "model.eval()\nout = model(x)\ntraced = torch.jit.trace(model, x)\ntraced(x)",
    "traced = torch.jit.trace(model.eval(), x)\nmodel(x)",
    "model(x)\nprogram = torch.export.export(model.eval(), (x,))\nprogram.module()(x)",
    "model.eval()(x)\ngraph = torch.fx.symbolic_trace(model)\nprint(graph.code)",
    "model.eval()(x)\nparams = dict(model.named_parameters())\nof = torch.func.grad(lambda p: torch.func.functional_call(model, p, x).sum())\nsorted(of(params))",
    "model.eval()\nrows = torch.vmap(model)(x[:, None])\nmodel(x)",
    "import copy, io\nmodel(x)\nother = copy.deepcopy(model)\ntorch.save(model, io.BytesIO())\nother._compiled_call_impl",
]
"""Cells that trace, transform or copy the model that is explored."""

COMPILED = [
    Written("torch.compile", "fast = torch.compile(model, backend='aot_eager')\nfast(x).sum().backward()", ""),
    Written("decorator", "@torch.compile(backend='aot_eager')\ndef h(v):\n    return model(v).sum()\nloss = h(x)\nloss.backward()", ""),
    Written("model.compile()", "model.compile(backend='aot_eager')\nmodel(x).sum().backward()", ""),
    Written("a compiled step", "fast = torch.compile(model, backend='aot_eager')\nfor _ in range(2):\n    opt.zero_grad()\n    criterion(fast(x), y).backward()\n    opt.step()", ""),
    Written("Sequential.compile()", "G.compile(backend='aot_eager')\nG(torch.randn(6, 2)).sum().backward()", "" if TORCH >= "2.14" else "G"),
    Written("the wrong one called", "fast = torch.compile(model)\nmodel.eval()(x)", "model.eval()"),
]  # fmt: skip


@pytest.fixture
def cells(magic_shell: InteractiveShell) -> Comparison:
    return Comparison(magic_shell, SETUP)


def name_of(cell: Written) -> str:
    return cell.name


@pytest.mark.parametrize("cell", [*WRITTEN, *COMPILED], ids=name_of)
def test_typical_cell_is_explored_and_unchanged(cells: Comparison, cell: Written) -> None:
    bare = cells.bare(cell.code)
    assert cells.magic(cell.code, "--stages captured,autograd") == bare
    run: Run = cells.shell.user_ns["_tc"]
    explored = run.record.explored
    assert ((explored.callee, explored.inside) if explored else ("", "")) == (cell.explored, cell.inside)
    assert run["captured"].text
    assert bool(run.record.of_stage("autograd")) is cell.has_backward


def explored(cells: Comparison, cell: str) -> Run:
    """The run of a cell, with every stage up to the backward graph."""
    cells.magic(cell, "--stages captured,backward")
    run: Run = cells.shell.user_ns["_tc"]
    return run


@pytest.mark.parametrize("cell", [STEP, "trainer.step(x, y)", "Fitter().fit(classifier, loader)"])
def test_training_cell_has_forward_and_backward(cells: Comparison, cell: str) -> None:
    assert explored(cells, cell)["backward"].text


def test_first_iteration_of_a_loop_compiles(cells: Comparison) -> None:
    run = explored(cells, f"for _ in range(3):\n{textwrap.indent(STEP, '    ')}")
    assert [frame.id for frame in run.record.frames] == ["0/0"]
    assert run.record.calls == 3


def test_run_can_switch_to_another_call(cells: Comparison) -> None:
    run = explored(cells, "xb = batch()\nout = model(xb)\nloss = square_loss(out, target)\nloss.backward()")
    assert (run.record.title, run.record.explored.others) == ("Net", ("batch", "square_loss"))
    assert "explored: model (line 3); to switch: --fn batch or --fn square_loss" in str(run)
    assert 'run.switch("batch") runs that call again, with its side effects' in str(run)
    before = torch.get_rng_state(), [plain(value) for value in cells.shell.user_ns["model"].state_dict().values()]
    other = run.switch("batch")
    assert (other.record.title, other.record.explored.callee) == ("batch", "batch")
    assert "randn" in other["captured"].text
    assert (other.record.explored.others, other.record.explored.line) == (("model", "square_loss"), 2)
    back = other.switch("square_loss").switch("model")
    assert (back.record.title, bool(back["backward"].text)) == ("Net", True)
    after = torch.get_rng_state(), [plain(value) for value in cells.shell.user_ns["model"].state_dict().values()]
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    with pytest.raises(KeyError, match="no call of 'criterion' is kept by this run; it has: batch, model"):
        run.switch("criterion")


def test_training_call_is_not_repeated(cells: Comparison) -> None:
    run = explored(cells, "xb = batch()\ntrainer.step(xb, y)")
    assert (run.record.explored.others, run.record.explored.scripts) == (("batch",), ("trainer.step",))
    with pytest.raises(KeyError, match="no call of 'trainer"):
        run.switch("trainer.step")


def test_fn_option_lists_the_other_calls(cells: Comparison) -> None:
    cells.magic("xb = batch()\nmodel(xb)", "--fn batch --stages captured")
    record = cells.shell.user_ns["_tc"].record
    assert (record.title, record.explored.others) == ("batch", ("model",))


def test_undetected_model_replaces_the_explored_function(cells: Comparison) -> None:
    """The magic cannot know that a dictionary holds a model, so it first explores the function called before."""
    cell = "zoo = {'net': model}\nxb = scale(x)\nzoo['net'](xb).sum().backward()"
    assert cells.magic(cell, "--stages captured") == cells.bare(cell)
    cells.magic(cell, "--stages captured")
    record = cells.shell.user_ns["_tc"].record
    assert (record.title, record.explored.others) == ("Net", ("scale",))
    assert [frame.function for frame in record.frames] == ["forward"]


def test_warm_model_is_called_again_on_copies(cells: Comparison) -> None:
    """A compiled model that ran before the cell compiles nothing in it, so its call is explored on copies."""
    cells.set_up()
    cells.printed("model.eval().compile(backend='eager')\nmodel(x)")
    cells.printed("%%tcompile --stages captured\nmodel.compile(backend='eager'); model(x)")
    record = cells.shell.user_ns["_tc"].record
    assert record.title == "Net"
    assert "was called again, on copies of its arguments" in record.problems[0].reason
    assert "nothing was compiled" not in str(record.problems)


def test_inplace_compile_of_a_sequential_is_reported(cells: Comparison) -> None:
    """Before 2.14, torch skips the forward of its own containers; following the hint compiles it."""
    cells.magic("G.compile(); G(torch.randn(2, 2))", "--stages captured")
    record = cells.shell.user_ns["_tc"].record
    if TORCH < "2.14":
        problem = record.problems[0]
        assert problem.reason.startswith("G.compile() compiles nothing: the forward of Sequential is PyTorch's own")
        cells.magic(f"{problem.hint.removeprefix('write ')}\nG(torch.randn(2, 2))", "--stages captured")
        record = cells.shell.user_ns["_tc"].record
    assert record["captured"].text
    assert not record.problems


def test_warm_sequential_is_called_again_on_copies(cells: Comparison) -> None:
    cells.set_up()
    cells.printed("G.compile(backend='eager')\nG(torch.randn(2, 2))")
    cells.printed("%%tcompile --stages captured\nG(torch.randn(2, 2))")
    record = cells.shell.user_ns["_tc"].record
    said = "G was compiled before this cell" if TORCH >= "2.14" else "G.compile() compiles nothing"
    assert record.problems[0].reason.startswith(said)
    assert record["captured"].text


@pytest.mark.parametrize("code", TRACED)
def test_traced_model_is_explored_unchanged(cells: Comparison, code: str) -> None:
    bare = cells.bare(code)
    assert cells.magic(code, "--stages captured") == bare
    assert bare.error == "NoneType: None"
    assert cells.shell.user_ns["_tc"].record["captured"].text


def test_a_model_has_no_more_attributes_than_before(cells: Comparison) -> None:
    cells.bare("model(x)")
    before = sorted(vars(cells.shell.user_ns["model"]))
    cells.magic("model(x)", "--stages captured")
    assert sorted(vars(cells.shell.user_ns["model"])) == before


def test_blocks_compiled_separately_stay_separate(cells: Comparison) -> None:
    cell = "model = nn.Sequential(Net(4), nn.Linear(2, 3), Net(4)).eval()\nfor part in model:\n    part.compile(backend='eager')\nmodel(x)"
    assert cells.magic(cell, "--stages captured") == cells.bare(cell)
    cells.magic(cell, "--stages captured")
    record = cells.shell.user_ns["_tc"].record
    assert {frame.function for frame in record.frames} == {"forward"}
    assert "self_norm" in record["captured"].text or "norm" in record["captured"].text
    assert record.title != "Sequential"


def test_callable_called_by_a_package_keeps_its_name(cells: Comparison) -> None:
    cells.magic(
        "from torch.utils.checkpoint import checkpoint\ncheckpoint(model.first, x, use_reentrant=False)",
        "--stages captured",
    )
    explored = cells.shell.user_ns["_tc"].record.explored
    assert (explored.callee, explored.inside) == ("model.first", "checkpoint")


def test_a_call_that_may_not_run_takes_nothing_over(cells: Comparison) -> None:
    """Two calls are as good as each other: it is not foreseen that the second runs."""
    run = explored(cells, "first = batch()\nif len(first) > 0:\n    second = square_loss(first, first)")
    assert run.record.explored is not None
    assert (run.record.explored.callee, run.record.explored.others) == ("batch", ("square_loss",))
