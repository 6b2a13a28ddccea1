"""A training's text, written by engines on a Ray cluster: Ray Data hands shards to a pool of actors."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError
from headstart.loading.model import load_model
from headstart_integrations.ray.cluster import Need, connected, first_line
from headstart_train.text.corpus import Document
from headstart_train.text.gathering import Order, WrittenShard
from headstart_train.text.shards import Shard, write_shard

Row = dict[str, Any]
_COMPLAINT = re.compile(r"headstart\.errors\.\w+: (.+)")


class ShardWriter:
    """An actor: one engine. Ray Data makes it where there is room, and calls it with one shard after the other.

    Raises:
        HeadstartError: the target cannot be loaded here, or another one has its name.
    """

    def __init__(self, order: Order, threads: int) -> None:
        torch.set_num_threads(threads)
        model = load_model(order.model, order.precision)
        if model.checkpoint.digest() != order.target_digest:
            raise ConfigError(f"model {order.model} has other weights on the machine of a writer; give all the same.")
        self._writing = order.writing
        self._llm = LLM(model, "none", max_batch_size=order.batch_size, max_context=order.max_context)

    def __call__(self, row: Row) -> Row:
        shard = _unpacked_shard(row)
        return _packed(shard.number, write_shard(self._llm, shard, self._writing), self._llm.model.backend.name)


class RayWriters:
    """A cluster's engines (``training.gathering.Writers``); connected while the object is in use.

    Args:
        address: of a cluster that runs; None: one of this machine alone (``guarding.guard_cluster`` first).
        count: engines; None: as many as there is room for.
        cpus: cores, and threads, of each.
        settings: for ``ray.init``, of a cluster of this machine.

    Raises:
        ConfigError: there is no such cluster, or too little room.
    """

    def __init__(self, address: str | None, count: int | None, cpus: float, **settings: Any) -> None:
        self._cpus = cpus
        self._connection = ExitStack()
        self._connection.enter_context(connected(address, Need(count or 1, cpus), **settings))
        self._count = count or max(int(ray.cluster_resources().get("CPU", 0) / cpus), 1)

    @property
    def count(self) -> int:
        return self._count

    def write(self, order: Order, shards: Sequence[Shard]) -> Iterator[WrittenShard]:
        """As ``Writers.write``."""
        from ray.data import ActorPoolStrategy, DataContext, from_items

        for name in ("ray.data", "ray.data._internal.execution.streaming_executor"):
            logging.getLogger(name).setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = False
        # What is done first comes first: a slow shard holds up none behind it.
        context.execution_options.preserve_order = False
        rows = [_packed_shard(shard) for shard in shards]
        pool = ActorPoolStrategy(size=min(self._count, len(rows)), max_tasks_in_flight_per_actor=1)
        threads = max(int(self._cpus), 1)
        written = from_items(rows, override_num_blocks=len(rows)).map(
            ShardWriter,
            fn_constructor_kwargs={"order": order, "threads": threads},
            compute=pool,
            num_cpus=self._cpus,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
        )
        try:
            for batch in written.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow"):
                for row in batch.to_pylist():
                    yield _unpacked(row)
        except RayError as error:
            raise ConfigError(f"the writers on Ray stopped: {_said(error)}") from error

    def close(self) -> None:
        """Disconnect, and end a cluster of this machine."""
        self._connection.close()


def _packed_shard(shard: Shard) -> Row:
    return {"number": shard.number, "prompts": json.dumps([list(map(dict, prompt)) for prompt in shard.prompts])}


def _unpacked_shard(row: Row) -> Shard:
    return Shard(int(row["number"]), tuple(json.loads(row["prompts"])))


def _packed(number: int, documents: Sequence[Document], backend: str) -> Row:
    """Columns that Arrow passes on as they are."""
    return {
        "number": number,
        "tokens": np.concatenate([document.tokens for document in documents]).astype("<i4").tobytes(),
        "answers": np.concatenate([document.answers for document in documents]).tobytes(),
        "lengths": [len(document.tokens) for document in documents],
        "backend": backend,
    }


def _unpacked(row: Row) -> WrittenShard:
    ends = np.cumsum(row["lengths"])[:-1]
    tokens = np.split(np.frombuffer(row["tokens"], dtype="<i4").astype(np.int32), ends)
    answers = np.split(np.frombuffer(row["answers"], dtype=np.bool_), ends)
    documents = [Document(said, answered) for said, answered in zip(tokens, answers, strict=True)]
    return WrittenShard(int(row["number"]), documents, str(row["backend"]))


def _said(error: Exception) -> str:
    """What a writer complained of, or what Ray says. An actor's own error comes as the text of its traceback."""
    complaints = _COMPLAINT.findall(str(error))
    return complaints[-1] if complaints else first_line(error)
