"""All sites of graph breaks come out of one call: twelve programs against the lists that are written in them."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler.calls.explored import Explored
from compiler.capture import sources
from compiler.engine import Exploration, explore
from compiler.record import Cause, Site, XRay
from compiler.record.options import Options
from compiler.xray import outside
from compiler.xray.causes import find_causes
from compiler.xray.outside import OutsideError, inside_the_process
from compiler.xray.search import find_sites, search_sites
from tests.compiler.broken import MODERN, function
from tests.compiler.xray.programs import FOLDER, NAMES, answers, module

CAPTURED = Options(stages=("captured",), backend="eager")
X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def explored(fn: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> Explored:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return explore(fn, options=CAPTURED, calls=calls)


def x_ray(fn: Callable[..., Any], *calls: Sequence[Any]) -> XRay:
    done = explored(fn, calls)
    assert done.call is not None
    return find_sites(done.call, done.record)


def x_ray_code(code: str, *args: Any) -> XRay:
    torch.manual_seed(0)
    return x_ray(function(code), args or (X,))


def text(site: Site) -> str:
    return " ".join(site.span.code.split())


@pytest.mark.skipif(not MODERN, reason="another version may trace the line that torch 2.13 fails at")
def test_search_goes_past_errors_of_torch_itself() -> None:
    code = """
    from collections import deque
    history = deque([1.0, 2.0])
    def f(x):
        if np.std(history) > 10:
            x = x + 1
        return x * x.sum().item()
    """
    found = x_ray_code(inspect.cleandoc(code))
    assert [text(site) for site in found.sites] == ["np.std(history)", "x.sum().item()"]
    assert found.sites[0].kind == "InternalTorchDynamoError"
    assert "torch.compile raises it without tcompile too" in found.sites[0].what
    assert found.problems == ()


def test_program_may_forbid_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "forbidden", None)
    (site,) = x_ray_code("def f(x):\n    return x * x.sum().item()").sites
    assert text(site) == "x.sum().item()"


@pytest.mark.skipif(not MODERN, reason="the lists are those of torch 2.13: older versions break at other expressions")
@pytest.mark.parametrize("name", NAMES)
def test_every_site_of_a_program_is_found(name: str) -> None:
    fn, calls = module(name).program()
    done = explored(fn, calls)
    assert done.call is not None
    search = search_sites(done.call, done.record)
    found = search.found
    sites = sorted(found.sites, key=lambda site: (site.line, site.span.end_column))
    wanted = answers(name)
    assert sorted(site.line for site in sites) == [line for line, _ in wanted]
    for line, code in wanted:
        assert any(site.line == line and text(site).startswith(code) for site in sites), (line, code)
    assert not found.problems
    assert len(wanted) >= 5
    check_causes(name, find_causes(search, Exploration).causes)


def check_causes(name: str, causes: Sequence[Cause]) -> None:
    """Check that the causes of recompilation are those of a program's list, all of them and no others."""
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    told = [(cause.kind, lines[cause.line - 1].strip(), " ".join(cause.span.code.split())) for cause in causes]
    wanted = list(module(name).CAUSES)
    for kind, line, code in told:
        same = [each for each in wanted if each[0] == kind and line.startswith(each[1]) and code.startswith(each[2])]
        assert same, (kind, line, code)
        wanted.remove(same[0])
    assert not wanted


BEHIND = """
def f(x):
    y = x + 1
    for n in range(3):
        k = y.sum().item()
        print(k)
        if y.mean() > 2:
            y = y * 2
    return y
"""


def test_sites_behind_an_evicting_break_name_it() -> None:
    found = x_ray_code(BEHIND)
    assert [text(site) for site in found.sites] == ["y.sum().item()", "print(k)", "y.mean() > 2"]
    item, printing, condition = found.sites
    assert (item.as_it_is, item.behind) == (True, "")
    assert (printing.as_it_is, printing.behind) == (False, item.id)
    assert printing.branch == ("for n in range(3)",)
    assert (condition.as_it_is, condition.function) == (False, "f")


ORIGINS = """
def inner(a, k):
    c = a * 2
    return print(c - k)
def f(x):
    y = x + 1
    k = id(y)
    inner(y, k)
    return y
"""


def test_origins_lead_through_the_caller() -> None:
    site = x_ray_code(ORIGINS).sites[-1]
    assert text(site) == "print(c - k)"
    told = [(origin.name, origin.span.code) for origin in site.origins]
    assert ("c", "c = a * 2") in told
    assert ("k", "k") in told
    assert ("k", "k = id(y)") in told


EITHER = """
def f(x, flag):
    y = x + 1
    if flag:
        y = y * 2
        z = 1
    else:
        z = y * 3
        print(z, y)
    with torch.no_grad() as mode:
        print([float(t) for t in x], mode)
    return y
"""


def test_origins_are_assignments_that_may_have_run() -> None:
    first, number, second = x_ray_code(EITHER, X, False).sites
    assert text(first) == "print(z, y)"
    assert [origin.span.code for origin in first.origins] == ["z = y * 3", "y = x + 1"]
    assert text(number) == "float(t)"
    assert [(origin.name, origin.span.code) for origin in number.origins] == [("t", "x")]
    assert ("mode", "torch.no_grad()") in [(origin.name, origin.span.code) for origin in second.origins]


BRANCHES = """
def f(x, flag):
    if flag:
        print("yes")
        return x * 2
    print("no")
    return x * 3
"""


def test_each_call_and_its_branch_is_searched() -> None:
    found = x_ray(function(BRANCHES), (X, True), (X, False))
    assert [text(site) for site in found.sites] == ['print("yes")', 'print("no")']


CHANGES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.seen, self.total, self.by_name = [], 0.0, {}
    def forward(self, x):
        with self.lock:
            y = self.linear(x)
        self.count += 1
        value = y.sum().item()
        self.seen.append(value)
        self.total += value
        self.by_name[str(len(self.seen))] = random.random()
        torch.nn.init.zeros_(self.linear.bias.data)
        return y * value
f = Model()
"""


def test_objects_and_random_numbers_are_left_as_they_were() -> None:
    model = function(CHANGES)
    done = explored(model, [(X,)])
    bias, forward = model.linear.bias.detach().clone(), type(model).forward
    code, names, random_state = forward.__code__, set(forward.__globals__), torch.get_rng_state()
    before = (list(model.seen), model.total, dict(model.by_name), model.count.item())
    assert done.call is not None
    found = find_sites(done.call, done.record)
    assert "y.sum().item()" in [text(site) for site in found.sites]
    assert (list(model.seen), model.total, dict(model.by_name), model.count.item()) == before
    assert torch.equal(model.linear.bias, bias)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert forward.__code__ is code
    assert set(forward.__globals__) == names


WRITES = """
def f(x, path):
    y = x + 1
    with open(path, "w") as file:
        file.write("written")
    print(y.sum().item())
    return y
"""
SAVES = """
def f(x, path):
    y = x + 1
    torch.save(y, path)
    print(y.sum().item())
    return y * 2
"""


@pytest.mark.parametrize("code", [WRITES, SAVES])
def test_what_writes_is_explained_and_not_run_again(code: str, tmp_path: Any) -> None:
    path = tmp_path / "file"
    done = explored(function(code), [(X, str(path))])
    path.unlink()
    assert done.call is not None
    found = find_sites(done.call, done.record)
    assert not path.exists()
    assert any("writes" in note for note in (*found.problems, *(site.note for site in found.sites)))
    assert "y.sum().item()" in [text(site) for site in found.sites]
    assert not found.problems


RAISES = """
import itertools
calls = itertools.count()
def f(x):
    y = x + x.sum().item()
    if next(calls):
        raise ValueError("only once")
    return y
"""


def test_program_that_raises_is_reported() -> None:
    found = x_ray_code(RAISES)
    assert "x.sum().item()" in [text(site) for site in found.sites]
    assert any("raises ValueError when it is repeated" in problem for problem in found.problems)


ADVANCES = """
class Sampler:
    count = 0
    def __init__(self):
        self.index = None
    def step(self, x):
        global steps
        if self.index is None:
            self.index = int(x.argmax())
        self.index += 1
        Sampler.count += 1
        steps += 1
        if x.sum() > 100 * self.index:
            x = x / 2
        return x * (10, 20, 30, 40, 50)[self.index]
steps = 0
f = Sampler().step
"""


def test_call_is_repeated_from_the_state_before_it() -> None:
    step = function(ADVANCES)
    done = explored(step, [(X,)])
    owner, names = step.__self__, step.__func__.__globals__
    state = owner.index, type(owner).count, names["steps"]
    assert done.call is not None
    found = find_sites(done.call, done.record)
    by_older = [] if MODERN else ["Sampler.count"]
    assert [text(site) for site in found.sites] == ["int(x.argmax())", *by_older, "x.sum() > 100 * self.index"]
    assert not any(site.note for site in found.sites)
    assert not found.problems
    assert (owner.index, type(owner).count, names["steps"]) == state == (4, 1, 1)


NEVER_ENDS = """
import itertools
calls = itertools.count()
def f(x):
    y = x * x.sum().item()
    again = next(calls)
    while again:
        try:
            again += 1
        except BaseException:
            pass
    return y
"""


def test_call_that_never_ends_is_stopped() -> None:
    done, handler = explored(function(NEVER_ENDS), [(X,)]), signal.getsignal(signal.SIGALRM)
    assert done.call is not None
    search = search_sites(done.call, done.record, limit=0.3)
    assert [text(site) for site in search.sites if site.note == "the search ended before it came here"]
    assert any("did not end within 0.3 s" in problem for problem in search.problems)
    assert not search.found.consequences
    assert signal.getsignal(signal.SIGALRM) is handler


SETTINGS = """
def f(x, items):
    torch.set_num_threads(threads)
    os.environ["TCOMPILE_TEST"] = "1"
    for item in items:
        x = x * item
    return x * x.sum().item()
"""


def test_changed_settings_and_used_iterators_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    code = f"import os\nthreads = {threads + 1}\n{SETTINGS}"
    try:
        done = explored(function(code), [(X, (n for n in (1, 2)))])
        torch.set_num_threads(threads)
        monkeypatch.setenv("TCOMPILE_TEST", "")
        environment = dict(os.environ)
        assert done.call is not None
        problems = find_sites(done.call, done.record).problems
        assert torch.get_num_threads() == threads
        assert dict(os.environ) == environment
    finally:
        torch.set_num_threads(threads)
    assert any("changes environment variables" in problem for problem in problems)
    assert any("changes torch's number of threads" in problem for problem in problems)
    assert any("`args[1]` is an iterator" in problem for problem in problems)


FOLLOWS = """
def f(x):
    values = zip(x.tolist(), [1, 2, 3, 4])
    return torch.tensor([a * b for a, b in values]) + x
"""


def test_consequence_of_another_break_is_no_site() -> None:
    found = x_ray_code(FOLLOWS)
    assert [text(site) for site in found.sites] == ["x.tolist()"]
    assert [span.line - found.sites[0].line for span in found.consequences] in ([], [1])


def test_output_and_logs_are_not_repeated(capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    code = "def f(x):\n    print('out')\n    log.warning('logged')\n    return x + x.sum().item()\n"
    done = explored(function(code), [(X,)])
    caplog.clear()
    capsys.readouterr()
    with caplog.at_level(logging.INFO):
        assert done.call is not None
        assert len(find_sites(done.call, done.record).sites) == 3
    assert not caplog.records
    assert "out" not in capsys.readouterr().out


def test_whole_program_has_no_sites() -> None:
    found = x_ray_code("def f(x):\n    return torch.relu(x) * 2\n")
    assert (found.sites, found.problems, found.captures) == ((), (), 1)


def test_programs_are_fast_and_of_realistic_size() -> None:
    for name in NAMES:
        lines = len(inspect.getsource(module(name)).splitlines())
        assert 40 <= lines <= 90, (name, lines)


def test_torch_may_make_its_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "clone/torch/_inductor/cache_dir_utils.py"
    monkeypatch.setattr(sources, "torch_folder", lambda: own.parent)
    monkeypatch.setattr(outside, "_COMPILERS", (str(own.parent),))
    sources.is_installed.cache_clear()
    names: dict[str, Any] = {}
    code = "import os\ndef make(path):\n    os.makedirs(path)\n"
    exec(compile(code, own, "exec"), names)
    with inside_the_process():
        names["make"](tmp_path / "cache")
        with pytest.raises(OutsideError, match="makes the folder"):
            (tmp_path / "other").mkdir()
    assert (tmp_path / "cache").is_dir()


def test_compilers_may_write_their_caches_where_a_program_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with inside_the_process():
        torch.compile(lambda x: x.sin() + 3)(torch.ones(5))
        with pytest.raises(OutsideError, match="makes the folder"):
            (tmp_path / "own").mkdir()
    assert any(tmp_path.joinpath("cache").iterdir())
