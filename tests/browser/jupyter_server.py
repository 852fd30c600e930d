"""A private Jupyter server: JupyterLab or Notebook 7, without the user's settings, on a free port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.conftest import find_free_port

App = Literal["lab", "notebook"]

TOKEN = "tcompile-tests"
START_SECONDS = 60
SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "checkForUpdates": False,
        "fetchNews": "false",
    },
    "@jupyterlab/docmanager-extension/plugin.jupyterlab-settings": {"autosave": False},
}


@dataclass(frozen=True)
class JupyterServer:
    """A running server. `folder` holds the notebooks it serves."""

    app: App
    url: str
    folder: Path

    def notebook_url(self, name: str) -> str:
        """The URL of a notebook, in a workspace that no other test has used."""
        route = f"lab/workspaces/{name.removesuffix('.ipynb')}/tree" if self.app == "lab" else "notebooks"
        return f"{self.url}/{route}/{name}?token={TOKEN}"

    def use_theme(self, dark: bool) -> None:
        """Set the theme of pages that are opened later."""
        theme = "JupyterLab Dark" if dark else "JupyterLab Light"
        body = json.dumps({"raw": json.dumps({"theme": theme})}).encode()
        self._request("lab/api/settings/@jupyterlab/apputils-extension:themes", "PUT", body)

    def kernel_of(self, name: str) -> str:
        """The id of the kernel of a notebook that is open."""
        [found] = [each["kernel"]["id"] for each in json.loads(self._request("api/sessions")) if each["path"] == name]
        return found

    def share_kernel(self, name: str, kernel: str) -> None:
        """Let a notebook that is opened later use a kernel that runs."""
        session = {"path": name, "name": name, "type": "notebook", "kernel": {"id": kernel}}
        self._request("api/sessions", "POST", json.dumps(session).encode())

    def stop_kernel(self, name: str) -> None:
        """Shut down the kernel of a notebook, so that it gets a new one when it is opened again."""
        for session in json.loads(self._request("api/sessions")):
            if session["path"] == name:
                self._request(f"api/sessions/{session['id']}", "DELETE")

    def _request(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextmanager
def running_server(app: App, root: Path, python: Path = Path(sys.executable)) -> Iterator[JupyterServer]:
    """Run a server in a private folder `root` until the block ends; its kernels run in `python`."""
    folder = root / "notebooks"
    folder.mkdir()
    port = find_free_port()
    server = JupyterServer(app, f"http://127.0.0.1:{port}", folder)
    log = root / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(_command(server, port), env=_environment(root, python), stdout=output, stderr=output)
    try:
        _wait_until_up(server, process, log)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


def _command(server: JupyterServer, port: int) -> list[str]:
    module, name = ("jupyterlab", "LabApp") if server.app == "lab" else ("notebook", "JupyterNotebookApp")
    return [
        *(sys.executable, "-m", module, "--no-browser", "--allow-root"),
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--LanguageServerManager.autodetect=False",  # else it starts the pyright of the wheel's test
        f"--ServerApp.root_dir={server.folder}",
        f"--IdentityProvider.token={TOKEN}",
        f"--{name}.expose_app_in_browser=True",
    ]


def _environment(root: Path, python: Path) -> dict[str, str]:
    private = {
        "JUPYTER_CONFIG_DIR": root / "config",
        "JUPYTER_DATA_DIR": root / "data",
        "JUPYTER_RUNTIME_DIR": root / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": root / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": root / "workspaces",
        "IPYTHONDIR": root / "ipython",
    }
    for path in private.values():
        path.mkdir()
    _write_json(root / "data/kernels/python3/kernel.json", _kernelspec(python))
    for name, setting in SETTINGS.items():
        _write_json(root / "settings" / name, setting)
    # The kernel runs this checkout; the user's own packages and startup files stay out of it.
    others = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "JUPYTER_PREFER_ENV_PATH": "0",
    }  # 1 would hide the kernelspec
    return {**os.environ, **{name: str(path) for name, path in private.items()}, **others}


def _kernelspec(python: Path) -> dict[str, object]:
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return {"argv": argv, "display_name": "Python 3", "language": "python", "metadata": {"debugger": True}}


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _wait_until_up(server: JupyterServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            server._request("api/status")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the {server.app} server did not come up in {START_SECONDS} s:\n{log.read_text()}")
