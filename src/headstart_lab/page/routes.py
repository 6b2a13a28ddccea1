"""What the lab page asks of the laboratory: how biased rules drift."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import FastAPI, Query, Response

from headstart.server.replies import Reply
from headstart_lab.page.rules_at_work import TRIALS, rules_at_work

Share = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]
Trials = Annotated[int, Query(ge=100, le=1_000_000)]
Seed = Annotated[int, Query(ge=0, lt=2**32)]


def add_rules(app: FastAPI) -> None:
    """Add ``/lab/biased-rules`` (entry point group ``headstart.routes``)."""

    @app.get("/lab/biased-rules", include_in_schema=False)
    async def rules(likeness: Share = 0.3, trials: Trials = TRIALS, seed: Seed = 0) -> Response:
        return Reply(await asyncio.to_thread(rules_at_work, likeness, trials, seed))
