"""The pytest fixture `tcompile_budget`, and failed tests shown without torch's trace.

Importing this module imports neither torch nor the rest of tcompile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.run.run import Run

BASELINE = "tcompile_budget.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tcompile-update`. Called by pytest."""
    parser.getgroup("tcompile").addoption(
        "--tcompile-update", action="store_true", help=f"write what calls cost into {BASELINE}, beside each test file"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep torch's trace, which `tcompile run` asks for, out of the logs of failed tests. Called by pytest.

    pytest shows the records of all loggers. Those of the trace have no message: hundreds of empty lines.
    """
    shown = session.config.pluginmanager.get_plugin("logging-plugin")
    for name in ("caplog_handler", "report_handler"):
        handler = getattr(shown, name, None)
        if isinstance(handler, logging.Handler):
            handler.addFilter(_has_message)


def _has_message(record: logging.LogRecord) -> bool:
    return bool(record.msg) or not record.name.startswith("torch.")


class TcompileBudget:
    """Checks what a call costs under torch.compile; the fixture `tcompile_budget` is one."""

    def __init__(self, test: str, baseline: Path, is_update: bool) -> None:
        self.test, self.baseline, self.is_update = test, baseline, is_update
        self._calls = 0

    def __call__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        calls: Sequence[Sequence[Any]] = (),
        at_most: Mapping[str, float] | None = None,
        tolerances: Mapping[str, str] | None = None,
        all_code: bool = False,
        **options: Any,
    ) -> Run:
        """Fail the test if a call costs more than the baseline beside the test file, or than `at_most`.

        >>> def test_cost(tcompile_budget):
        ...     tcompile_budget(model, x)                             # against tcompile_budget.json
        ...     tcompile_budget(model, x, at_most={"kernels": 2})     # no file is needed

        `pytest --tcompile-update` writes the file. `options` are those of `explore`. Returns the `Run`.
        """
        import torch

        from compiler.torch_api.own_trace import uncaptured_trace
        from explorer.budget.baseline import BaselineError
        from explorer.budget.reports import report_text
        from explorer.entry.budget import Terms, check_terms, report_on, update_baseline
        from explorer.entry.explore import explore

        __tracebackhide__ = True
        self._calls += 1
        name = self.test if self._calls == 1 else f"{self.test} {self._calls}"
        given = {key: str(value) for key, value in sorted(options.items()) if key != "time"}
        baseline = None if at_most else self.baseline
        terms = Terms(name, given, baseline, at_most or {}, tolerances or {}, all_code)

        def run_call() -> Run:
            with uncaptured_trace():
                return explore(fn, *args, kwargs=kwargs, calls=calls, **options)

        try:
            entry = check_terms(terms, torch.__version__, is_update=self.is_update)
        except BaselineError as error:
            words = str(error).replace("--update", "pytest --tcompile-update")
            raise pytest.fail.Exception(words, pytrace=False) from None
        run = run_call()
        if self.is_update and baseline is not None:
            update_baseline(run, terms)
            return run
        report = report_on(run, terms, entry, run_call)
        if not report.holds:
            pytest.fail(report_text(report), pytrace=False)
        return run


@pytest.fixture
def tcompile_budget(request: pytest.FixtureRequest) -> TcompileBudget:
    """Check what a call costs under torch.compile against a baseline, or against limits."""
    path = Path(str(request.node.path))
    is_update = bool(request.config.getoption("--tcompile-update"))
    file, _, test = request.node.nodeid.partition("::")  # a parameter in the name of the test may have a slash
    return TcompileBudget(f"{file.rpartition('/')[2]}::{test}", path.with_name(BASELINE), is_update)
