"""Prints a line `name==version` for pip and for each package that installing tcompile with its extras brings here.

The newest versions that the oldest Python we support can have, but of torch the one that is pinned by now: to change
it, change its line first. Nothing is installed: pip resolves, and says what it would do. Run it on Linux, where torch
brings the most.
"""

import json
import subprocess
import sys
from pathlib import Path

RESOLVE = ("-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-")
OLDEST_PYTHON = ("--python-version=3.11.0", "--only-binary=:all:", "--target=build")

[torch] = [line for line in Path("constraints.txt").read_text().splitlines() if line.startswith("torch==")]
done = subprocess.run(
    [sys.executable, *RESOLVE, *OLDEST_PYTHON, torch, "pip", ".[notebooks,test]"], stdout=subprocess.PIPE, check=True
)
packages = [item["metadata"] for item in json.loads(done.stdout)["install"]]
pins = {package["name"]: package["version"].split("+")[0] for package in packages if package["name"] != "tcompile"}
print("# The versions that `make` installs; `make constraints` writes them anew.")
for name in sorted(pins, key=str.lower):
    print(f"{name}=={pins[name]}")
