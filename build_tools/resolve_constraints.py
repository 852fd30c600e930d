"""Print a line `name==version` for pip and for each package that tcompile and its extras install on this machine.

The versions are the newest for the oldest Python that we support. Only torch keeps its pin; edit its line first to
change it. Nothing is installed; pip only resolves. Run it on Linux, where torch has the most dependencies.
"""

import json
import subprocess
import sys
from pathlib import Path

RESOLVE = ("-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-")
OLDEST_PYTHON = ("--python-version=3.11.0", "--only-binary=:all:", "--target=build")

[torch] = [line for line in Path("constraints.txt").read_text().splitlines() if line.startswith("torch==")]
ours = ("pip", "hatchling", ".[lab,notebooks,docs,test]")
done = subprocess.run([sys.executable, *RESOLVE, *OLDEST_PYTHON, torch, *ours], stdout=subprocess.PIPE, check=True)
packages = [item["metadata"] for item in json.loads(done.stdout)["install"]]
pins = {package["name"]: package["version"].split("+")[0] for package in packages if package["name"] != "tcompile"}
print("# The versions that `make` installs; `make constraints` writes them anew.")
for name in sorted(pins, key=str.lower):
    print(f"{name}=={pins[name]}")
