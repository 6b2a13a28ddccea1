"""Look-ahead embeddings at their first step."""

from __future__ import annotations

from dataclasses import replace

from headstart.drafting.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_train.decoder.trainable import TrainableDecoder
from headstart_train.making import Start
from headstart_train.objectives.lookahead import LookaheadObjective


def make(start: Start) -> LookaheadObjective:
    """Look-ahead embeddings at their first step, beside the frozen target."""
    config, tables, ids = start.target.config, start.tables, start.ids
    lookahead = LookaheadEmbeddings(start.slots, config.hidden_size).to(ids.device)
    lookahead.begin_like(tables.embedding, config.embedding.scale)
    weights = replace(start.weights, embedding=tables.embedding)
    frozen = TrainableDecoder(config, weights, frozen=True, device=ids.device)
    return LookaheadObjective(lookahead, frozen, tables, ids, loss=start.settings.loss, decay=start.decay)
