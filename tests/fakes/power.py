"""A disk that loses what was not synced when its power goes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random

import pytest


class Disk:
    """Remembers what of a folder was synced; files in it are only appended to, or replaced.

    Parameters
    ----------
    folder : Path
        Without folders in it.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._names: dict[str, int] = {}
        #: Of each file, by inode.
        self._contents: dict[int, bytes] = {}
        #: Keep inodes of removed files from being used again.
        self._pins: list[int] = []
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            if found.st_ino == self._folder.stat().st_ino:
                self._names = {entry.name: entry.inode() for entry in os.scandir(self._folder)}
            return
        pin = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self._pins.append(pin)
        self._contents[found.st_ino] = os.pread(pin, found.st_size, 0)

    def lose_power(self, random: Random) -> None:
        """Take back what was not synced, but for some bytes at the end of each file, which were on disk already."""
        now = {path.stat().st_ino: path.read_bytes() for path in self._folder.iterdir()}
        left: dict[str, bytes] = {}
        for name, inode in self._names.items():
            synced = self._contents.get(inode, b"")
            unsynced = now.get(inode, synced)[len(synced) :]
            left[name] = synced + unsynced[: random.randrange(len(unsynced) + 1)]
        for path in self._folder.iterdir():
            path.unlink()
        for name, content in left.items():
            (self._folder / name).write_bytes(content)

    def close(self) -> None:
        """Let go of what was removed."""
        for pin in self._pins:
            os.close(pin)
