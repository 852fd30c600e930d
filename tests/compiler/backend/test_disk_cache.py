"""The disk cache: other users cannot change it, and changed files are not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("triton")

from compiler.backend.runtime import disk_cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configured folder, which does not exist yet."""
    chosen = tmp_path / "cache"
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(chosen))
    return chosen


def test_the_folder_is_private(folder: Path) -> None:
    assert disk_cache.folder() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_readable_folder_becomes_private(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    assert disk_cache.folder() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def check_is_refused(folder: Path, why: str) -> None:
    with pytest.warns(UserWarning, match=rf"does not use its cache.*{why}.*TCOMPILE_CACHE_DIR"):
        used = disk_cache.folder()
    assert used != folder
    assert stat.S_IMODE(used.stat().st_mode) == 0o700
    disk_cache.write("key", {"a": 1})
    assert disk_cache.read("key") == ({"a": 1}, b"")
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("mode", [0o777, 0o772])
def test_cache_folder_writable_by_others_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    check_is_refused(folder, "others may write")


def test_folders_that_another_group_writes_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own group, and root's, are allowed."""
    folder.mkdir(mode=0o770, parents=True)
    folder.chmod(0o770)
    group = folder.stat().st_gid
    monkeypatch.setattr(disk_cache, "_private_groups", lambda: iter((group,)))
    assert disk_cache.reason_untrusted(folder) == ""
    others = os.stat_result((stat.S_IFDIR | 0o770, 1, 1, 1, os.getuid(), 12345, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda _: others)
    assert disk_cache.reason_untrusted(folder) == f"others may write to {folder}"


def test_parent_folder_writable_by_others_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.parent.chmod(0o777)
    check_is_refused(folder, "others may write")
    folder.parent.chmod(0o1777)
    disk_cache._check_folder.cache_clear()
    assert disk_cache.folder() == folder


def test_cache_folder_of_another_owner_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.warns(UserWarning, match=f"belongs to user {owner}"):
        assert disk_cache.folder() != folder


def test_symlink_into_unsafe_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "inner").mkdir()
    folder.symlink_to(tmp_path / "open" / "inner")
    check_is_refused(folder, "others may write")


def test_corrupt_cache_files_count_as_missing(folder: Path) -> None:
    facts = {"threads": 128}
    disk_cache.write("key", facts, b"binary")
    assert disk_cache.read("key") == (facts, b"binary")
    disk_cache.binary_path(b"binary").write_bytes(b"banary")
    assert disk_cache.read("key") is None
    disk_cache.write("key", facts, b"binary")
    entry = folder / "key.json"
    entry.write_text(entry.read_text().replace("128", "256"))
    assert disk_cache.read("key") is None
    entry.write_text("[")
    assert disk_cache.read("key") is None


def test_interrupted_writes_leave_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    disk_cache.folder()
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        disk_cache.write("key", {})
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("name", ["torch", "triton", "ptxas", "driver"])
def test_cache_keys_include_versions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, versions = disk_cache.key("a"), disk_cache.versions()
    assert f"{name} " in versions
    monkeypatch.setattr(disk_cache, "versions", lambda: versions.replace(f"{name} ", f"{name} 1."))
    assert disk_cache.key("a") != before
