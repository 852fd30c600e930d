"""`Job`: a program that ran elsewhere, or under `observe`, as an index of its compilations and their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compiler.logs import job as logged
from compiler.logs.compilations import Compilation
from compiler.logs.files import LogError
from explorer.render.static import document_html
from explorer.run import job_page
from explorer.run.files import replace_file
from explorer.run.job_facts import FACTS, JobFacts, changed_caches, cold_start_facts, save_trace
from explorer.run.run import Run


class Job(logged.Job):
    """What torch.compile did in a program, read from its structured traces (TORCH_TRACE).

    >>> job = tcompile.load("trace_dir")    # or: with tcompile.observe() as job: ...
    >>> print(job)                          # the index: compilations by time, and by function
    >>> job["0/1"].kernels                  # the `Run` of one compilation ("3:0/1" of rank 3)
    >>> job.save("job.html")                # a page that needs no network

    `ranks` has a log and a record for each process, `compilations` the compilations of all, rank by rank in order.
    Records are read when asked for. In a notebook, a job is shown as a table, in which a click opens a compilation.
    """

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """The compilations of all ranks, rank by rank."""
        return tuple(one for rank in self.ranks.values() for one in rank.compilations)

    def __getitem__(self, name: str) -> Run:
        """The run of a compilation, by the name in the index: "0/1", or "3:0/1" of rank 3. Raises KeyError."""
        if not isinstance(name, str):
            raise TypeError(f"a job is indexed by names such as '0/1', not {name!r}; `compilations` can be iterated")
        try:
            return Run(job_page.record_named(self, name))
        except LogError as error:
            raise KeyError(str(error)) from None

    @property
    def breaks(self) -> JobFacts:
        """The places at which graphs end, with the compilations of each."""
        return JobFacts(FACTS["breaks"](self))

    @property
    def recompiles(self) -> JobFacts:
        """The causes of recompilations, those that cost most first."""
        return JobFacts(FACTS["recompiles"](self))

    @property
    def graphs(self) -> JobFacts:
        """The graphs, the largest first."""
        return JobFacts(FACTS["graphs"](self))

    @property
    def cold_start(self) -> JobFacts:
        """The time until every function was compiled once: by phase, by function, and as a flame chart."""
        return JobFacts(cold_start_facts(self))

    def changed_caches(self, before: Job) -> JobFacts:
        """Which parts of the cache keys changed since an earlier run, for look-ups that missed."""
        return JobFacts(changed_caches(before, self))

    def trace(self, path: str | Path) -> Path:
        """Save what each rank compiled, and when, as a trace (.json) for ui.perfetto.dev; returns the path."""
        return save_trace(self, path)

    def save(self, path: str | Path) -> Path:
        """Save the job as one page (.html): the index, and the records of the costliest compilations.

        Returns the path. Raises ValueError for another suffix, OSError if the file can't be written.
        """
        path = Path(path)
        if path.suffix.lower() != ".html":
            raise ValueError(f"{str(path)!r}: a job is saved as a page, '.html'; its data are the logs")
        return replace_file(path, job_page.page_of(self).html.encode())

    def __repr__(self) -> str:
        return job_page.index_text(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Text, and static HTML without scripts. The widget is a separate output."""
        html = f'<div class="tcompile-twin">{document_html(job_page.index_of(self))}</div>'
        return {"text/plain": repr(self), "text/html": html}

    def _ipython_display_(self) -> None:
        """Display static HTML, then the live index, which hides the HTML; a saved notebook shows the HTML."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            display(self.widget())

    def widget(self) -> Any:
        """The live index; it opens the record of a compilation below the table."""
        from explorer.run.job_widget import live_index

        return live_index(self)
