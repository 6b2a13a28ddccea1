"""Published blocks in files: what a restart, or another process, finds of texts that were read before.

A file holds one block, and the state after its last token where there is one. Its name is a digest over the model, the
cache's layout, the salt and all tokens up to the block's last, and tells nobody what it holds. A digest of these and of
its bytes is checked when it is read: files may be deleted, broken or foreign at any time, and several processes may
share a directory. Blocks are copied by the thread that runs passes, a few after each step, and written behind.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from threading import Lock

import numpy as np

from headstart.common import kept_files
from headstart.passes.batch import PortableStorage
from headstart.passes.cache.prefix import Link
from headstart.passes.cache.states import StateSlots

PART = 16
"""Files are counted after each such part of what they may take, and brought down by two: others write there, too."""
_WAITING_BYTES = 1 << 27
"""That wait to be written at most."""
_APART, _RECENT = 0.001, 1.0
"""Seconds that a block counts as used before the one that it follows; that nothing is noted after a use."""
_MAGIC = b"headstart prefix 1 "


class PrefixFiles:
    """Those of one cache.

    Args:
        directory: made when it is needed.
        most_bytes: of all files there, whose ever; what was used longest ago goes first.
        identity: of everything that blocks depend on beside layout, salt and tokens.
        storage, states: of the cache.
    """

    step_bytes = 1 << 25
    """That a step copies at most, and reads, while others wait; a block is never too much."""

    def __init__(
        self, directory: Path, most_bytes: int, identity: str, storage: PortableStorage, states: StateSlots
    ) -> None:
        self._directory, self._most_bytes = directory, most_bytes
        self._identity = hashlib.sha256(f"{identity} {storage.layout}".encode(errors="surrogatepass")).digest()
        self._storage, self._states = storage, states
        self.unsaved: OrderedDict[int, Link] = OrderedDict()
        """Published blocks by their numbers, the oldest first; taken away by whoever lets them hold something else."""
        self.read_bytes = self._waiting = 0
        """At this step; to be written."""
        self._uncounted = most_bytes
        self._lock = Lock()
        # Its thread ends when nobody holds it any more; a process that ends waits for what is to be written.
        self._writer = ThreadPoolExecutor(1, "headstart-prefixes")

    def step(self, idle: bool) -> None:
        """Have some written of what is not there, more where nobody waits; afterwards more may be read."""
        copied = self.read_bytes = 0
        while self.unsaved and self._waiting < _WAITING_BYTES and (idle or copied < self.step_bytes):
            copied += self._save(self.unsaved.popitem(last=False)[1])

    def close(self) -> None:
        """Write the rest, for the last time."""
        while self.unsaved:
            self._save(self.unsaved.popitem(last=False)[1])
        self._writer.shutdown()

    def read(self, digest: bytes, tokens: Sequence[int], depth: int) -> bytes | None:
        """What the storage gave of a chain's block, by its digest; ``depth``: blocks before it. None: there is none."""
        path = self._path(digest)
        try:
            status = path.stat()
            if not S_ISREG(status.st_mode) or status.st_size > self._most_bytes:
                kept_files.tell(f"{path} is no block of a prefix; its tokens are computed.")
                return None
            content = path.read_bytes()
            start = len(_MAGIC) + 32
            if not content.startswith(_MAGIC + self._sealed(digest, tokens, content[start:])):
                path.unlink(missing_ok=True)
                kept_files.tell(f"{path} is damaged or foreign, and is deleted; its tokens are computed.")
                return None
            _use(path, depth)
        except FileNotFoundError:
            return None
        except OSError as error:
            kept_files.tell(f"prefix_cache_dir {path.parent} cannot be read ({error.strerror}); prefixes are computed.")
            return None
        self.read_bytes += len(content)
        return content[start:]

    def _save(self, link: Link) -> int:
        """Bytes that were copied."""
        content = self._storage.read_block(link.block, self._states.after_block(link.block))
        with self._lock:
            self._waiting += len(content)
        with suppress(RuntimeError):  # the process is about to end
            self._writer.submit(self._write, link, content)
        return len(content)

    def _write(self, link: Link, content: bytes) -> None:
        try:
            self._uncounted += max(len(content), kept_files.BLOCK_BYTES)
            if self._uncounted > self._most_bytes // PART:
                self._uncounted = 0
                most = self._most_bytes - 2 * (self._most_bytes // PART)
                kept_files.make_room(self._directory.glob("prefix-*"), most)
            with kept_files.written(self._path(link.digest)) as file:
                file.writelines((_MAGIC, self._sealed(link.digest, link.tokens, content), content))
            at: Link | None = link
            # What it follows is in use, though it may have been found in memory.
            while at is not None and not at.is_root:
                path = self._path(at.digest)
                if at is not link and path.stat().st_mtime > time.time() - _RECENT:
                    break
                _use(path, at.depth)
                at = at.parent
        except FileNotFoundError:  # the directory, or a block before, has just been deleted
            pass
        except OSError as error:
            kept_files.tell(
                f"prefix_cache_dir {self._directory} cannot be written ({error.strerror}); prefixes stay in memory."
            )
        finally:
            with self._lock:
                self._waiting -= len(content)

    def _path(self, digest: bytes) -> Path:
        return self._directory / f"prefix-{hashlib.sha256(self._identity + digest).hexdigest()[:40]}"

    def _sealed(self, digest: bytes, tokens: Sequence[int], content: bytes) -> bytes:
        """SHA-256 of what a file is of, and of what it holds."""
        whole = hashlib.sha256(self._identity + digest + np.asarray(tokens, "<i4").tobytes())
        whole.update(content)
        return whole.digest()


def _use(path: Path, depth: int) -> None:
    used = time.time() - depth * _APART
    os.utime(path, (used, used))
