"""A slot's text and what the cache holds of it, in one file, as llama.cpp's server saves and restores it.

Behind a head stand the salt, the tokens, and block by block what the cache's storage gave. The seal of a block is a
digest of all that stands before, of the model and layout, and of whose file it is. Blocks are copied between passes, a
few at a time; files are read and written meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NamedTuple

import numpy as np

from headstart.common import kept_files
from headstart.engine.engine import Engine
from headstart.entrypoints.engine_making import blocks_identity
from headstart.errors import RequestError
from headstart.passes.batch import IntArray, PortableStorage
from headstart.passes.cache.prefix import Link, PrefixIndex
from headstart_server.engine_thread import EngineThread

_STEP_BYTES = 1 << 23
"""That are copied between two passes; a block is never too much."""
_MAGIC = b"headstart slot 1"
_HEAD = struct.Struct("<16s32sIII")
"""Magic, identity; bytes of the salt, tokens, blocks."""
_PART = struct.Struct("<I32s")
"""Before each block: its bytes, and its seal."""
_LONGEST_SALT, _MOST_TOKENS = 1 << 12, 1 << 24
_LONGEST_NAME = 200
"""Bytes of a file's name, which is longer while it is written."""
_PASSING = -1
"""A sequence of the cache that nothing is computed for."""


class SlotText(NamedTuple):
    """What a slot holds."""

    tokens: IntArray
    """int32 [token]."""
    salt: str
    """Of the cache."""


class SlotFiles:
    """Those of one engine. Its methods wait for files, and for the engine: they are called on threads of their own.

    Args:
        engine: runs meanwhile.
        directory: of the files; made when it is needed.
        most_bytes: of all files of an owner; what has no room is refused.
        apart: owners have folders of their own there.
    """

    def __init__(self, engine: EngineThread, directory: Path, most_bytes: int, apart: bool) -> None:
        self._engine, self._directory, self._most_bytes, self._apart = engine, directory, most_bytes, apart
        self._runner = engine.llm.engine.runner

    def save(self, filename: str, owner: str, text: SlotText) -> tuple[int, int]:
        """Write what the cache holds of a text: how many tokens that are, and the bytes of the file.

        Args:
            filename: a plain name.
            owner: whose text it is; a part of its salt (``tenant_salt``).

        Raises:
            RequestError: it cannot be written, or has no room.
            ClosedError: the engine ends.
        """
        path, (storage, prefixes) = self._path(filename, owner), self._cache()
        tokens = text.tokens[: len(text.tokens) // storage.block_size * storage.block_size]
        salt, identity = _without(owner, text.salt).encode(), self._identity(owner)
        ahead = salt + tokens.astype("<i4").tobytes()
        with _telling(filename, "written"):
            _require_own(path, filename)
            room, blocks, seal = self._most_bytes - _taken(path), 0, _digest(identity, ahead)
            with kept_files.written(path) as file:
                file.seek(_HEAD.size)
                file.write(ahead)
                for content in self._copied(storage, prefixes, SlotText(tokens, text.salt)):
                    seal = _digest(seal, content)
                    if file.tell() + _PART.size + len(content) > room:
                        raise RequestError(
                            f"filename {filename!r} has no room in slot_save_path, which may take {self._most_bytes} "
                            "bytes; delete files there, or raise --prefix-cache-bytes.",
                            "filename",
                        )
                    file.write(_PART.pack(len(content), seal))
                    file.write(content)
                    blocks += 1
                nbytes = file.tell()
                file.seek(0)
                file.write(_HEAD.pack(_MAGIC, identity, len(salt), len(tokens), blocks))
        return blocks * storage.block_size, nbytes

    def restore(self, filename: str, owner: str) -> tuple[SlotText, int]:
        """Let the cache hold what a file has: the text that requests now find there, and the bytes of the file.

        Raises:
            RequestError: it cannot be read, or is not what this owner has saved with this model.
            ClosedError: the engine ends.
        """
        path, (storage, prefixes) = self._path(filename, owner), self._cache()
        identity, size = self._identity(owner), storage.block_size
        with _telling(filename, "read"), _opened(path, filename) as file:
            magic, whose, salt_bytes, count, blocks = _HEAD.unpack(_exactly(file, _HEAD.size))
            if magic != _MAGIC:
                raise _NoSlotError
            if whose != identity:
                raise RequestError(
                    f"filename {filename!r} was saved with another model, cache_type, build or API key; save it anew.",
                    "filename",
                )
            if salt_bytes > _LONGEST_SALT or count > _MOST_TOKENS:
                raise _NoSlotError
            ahead = _exactly(file, salt_bytes + 4 * count)
            tokens = np.frombuffer(ahead, "<i4", offset=salt_bytes).astype(np.int32)[: blocks * size]
            if len(tokens) < blocks * size:
                raise _NoSlotError
            text = SlotText(tokens, _with(owner, ahead[:salt_bytes].decode()))
            taking = _Taking(self._engine.llm.engine, prefixes, text)
            for contents in _parts(file, storage, blocks, _digest(identity, ahead)):
                if not self._engine.at_rest(partial(taking.take, contents)):
                    break
            nbytes = os.fstat(file.fileno()).st_size
        found = self._engine.at_rest(partial(self._found, text))
        return text._replace(tokens=tokens[:found]), nbytes

    def erase(self, text: SlotText, others: list[SlotText]) -> None:
        """Let the cache give up what it holds of a text and of no other."""
        _, prefixes = self._cache()
        shared = max((common(text, other) for other in others), default=0)
        self._engine.at_rest(partial(self._give_up, prefixes, text, shared))

    def _cache(self) -> tuple[PortableStorage, PrefixIndex]:
        cache, model = self._runner.cache, self._engine.llm.model
        if not isinstance(cache.storage, PortableStorage) or model.config.encoder is not None:
            raise RequestError(f"the cache of {model.name} cannot be kept in files; leave the call out.", "id_slot")
        if cache.pool.prefixes is None:
            raise RequestError("prefix_caching is off, so that nothing of a slot is kept; turn it on.", "id_slot")
        return cache.storage, cache.pool.prefixes

    def _identity(self, owner: str) -> bytes:
        return _digest(self._blocks_identity, owner.encode())

    @cached_property
    def _blocks_identity(self) -> bytes:
        storage, prefixes = self._cache()
        told = f"{blocks_identity(self._engine.llm.model, prefixes.model)} {storage.layout}"
        return _digest(told.encode(errors="surrogatepass"))

    def _path(self, filename: str, owner: str) -> Path:
        plain = filename.isprintable() and not filename.startswith(".") and not {"/", "\\"} & set(filename)
        if not plain or not 0 < len(filename.encode()) <= _LONGEST_NAME:
            raise RequestError(f"filename is {filename!r:.80}; give a plain name without a directory.", "filename")
        folder = self._directory / hashlib.sha256(owner.encode()).hexdigest()[:16] if self._apart else self._directory
        return folder / filename

    def _copied(self, storage: PortableStorage, prefixes: PrefixIndex, text: SlotText) -> Iterator[bytes]:
        """The blocks of a text that are in the cache, from the first one."""
        tokens, size, states = text.tokens.tolist(), storage.block_size, self._runner.cache.states
        end, first = prefixes.root(text.salt), 0

        def some() -> list[bytes]:
            nonlocal end, first
            contents: list[bytes] = []
            while first < len(tokens) and sum(map(len, contents)) < _STEP_BYTES:
                link = prefixes.find(end, tokens[first : first + size])
                if link is None:  # given up meanwhile
                    break
                contents.append(storage.read_block(link.block, states.after_block(link.block)))
                end, first = link, first + size
            return contents

        while contents := self._engine.at_rest(some):
            yield from contents

    def _found(self, text: SlotText) -> int:
        """How many of its tokens a request would find; they are given up last."""
        cache = self._runner.cache
        cache.add(_PASSING, text.salt)
        try:
            return cache.adopt(_PASSING, text.tokens.tolist())
        finally:
            cache.remove(_PASSING)

    def _give_up(self, prefixes: PrefixIndex, text: SlotText, shared: int) -> None:
        pool, end, links = self._runner.cache.pool, prefixes.root(text.salt), list[Link]()
        size = pool.block_size
        for first in range(0, len(text.tokens) - size + 1, size):
            link = prefixes.find(end, text.tokens[first : first + size].tolist())
            if link is None:
                break
            links.append(end := link)
        for link in links[shared // size :]:
            if not pool.allocator.references(link.block):
                pool.unpublish(link.block)


class _NoSlotError(Exception):
    """A file that is not what ``save`` writes."""


class _Taking:
    """Blocks on their way into the cache, one after the other."""

    def __init__(self, engine: Engine, prefixes: PrefixIndex, text: SlotText) -> None:
        self._engine, self._prefixes, self._end = engine, prefixes, prefixes.root(text.salt)
        self._tokens, self._first = text.tokens.tolist(), 0

    def take(self, contents: list[bytes]) -> bool:
        """Whether there was room, beside what decodes and for the beginning."""
        pool, spare = self._engine.runner.cache.pool, len(self._engine.running)
        for content in contents:
            end = self._first + pool.block_size
            after = self._tokens[self._first : end]
            link = self._prefixes.find(self._end, after)
            if link is None:
                if pool.allocator.num_free <= spare + self._first // pool.block_size:
                    return False
                link = pool.take_in(self._end, after, content, spare)
                pool.release([link.block])
            self._end, self._first = link, end
        return True


def common(text: SlotText, other: SlotText) -> int:
    """How many tokens two texts begin with in common; 0 where their salts differ."""
    if text.salt != other.salt:
        return 0
    count = min(len(text.tokens), len(other.tokens))
    differ = np.flatnonzero(text.tokens[:count] != other.tokens[:count])
    return int(differ[0]) if len(differ) else count


def _parts(file: BinaryIO, storage: PortableStorage, blocks: int, seal: bytes) -> Iterator[list[bytes]]:
    """The blocks of a file, a few at a time; each is what was written."""
    contents: list[bytes] = []
    for place in range(blocks):
        length, told = _PART.unpack(_exactly(file, _PART.size))
        if length not in (storage.block_nbytes, storage.block_nbytes + storage.state_nbytes):
            raise _NoSlotError
        contents.append(_exactly(file, length))
        seal = _digest(seal, contents[-1])
        if seal != told:
            raise _NoSlotError
        if place == blocks - 1 or sum(map(len, contents)) >= _STEP_BYTES:
            yield contents
            contents = []


def _exactly(file: BinaryIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise _NoSlotError
    return content


def _digest(*parts: bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.digest()


def _taken(path: Path) -> int:
    """Bytes of the files beside one that is to be replaced."""
    sizes = [0]
    for other in path.parent.glob("*"):
        with suppress(OSError):  # it has just been deleted
            status = other.lstat()
            sizes.append(status.st_size if other != path and S_ISREG(status.st_mode) else 0)
    return sum(sizes)


def _require_own(path: Path, filename: str) -> None:
    """Refuse to replace what is no saved slot."""
    with suppress(FileNotFoundError), _opened(path, filename) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise RequestError(f"filename {filename!r} is a file that is no saved slot; take another name.", "filename")


@contextmanager
def _opened(path: Path, filename: str) -> Iterator[BinaryIO]:
    """A regular file, which lies where it seems to."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RequestError(f"filename {filename!r} is no file; take another name.", "filename")
    with os.fdopen(handle, "rb") as file:
        yield file


@contextmanager
def _telling(filename: str, done: str) -> Iterator[None]:
    """What is wrong with a file, as a sentence."""
    try:
        yield
    except FileNotFoundError:
        complaint = "is not in slot_save_path; save it first"
    except OSError as error:
        complaint = f"cannot be {done} in slot_save_path ({error.strerror}); mend that, or take another name"
    except (_NoSlotError, UnicodeDecodeError):
        complaint = "is damaged, or is no saved slot; save it anew"
    else:
        return
    raise RequestError(f"filename {filename!r} {complaint}.", "filename")


def _without(owner: str, salt: str) -> str:
    """A salt (``tenant_salt``, perhaps with an adapter's digest before it) that tells nothing of its owner."""
    before, _, own = salt.partition(f"{owner}/")
    return f"{before}/{own}"


def _with(owner: str, kept: str) -> str:
    """The same the other way round."""
    before, _, own = kept.partition("/")
    return f"{before}{owner}/{own}"
