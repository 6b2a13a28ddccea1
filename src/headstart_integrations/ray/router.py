"""Serve's request router that sends a chat to the replica that holds its blocks and what its drafters learnt.

The interface is ``ray.serve.request_router`` (Ray 2.60, alpha). It runs in each gateway's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.serve.request_router import RequestRouter

from headstart_integrations.ray.forwarding import Forwarded
from headstart_integrations.ray.routing_key import preferred

if TYPE_CHECKING:
    from ray.serve.request_router import PendingRequest, RunningReplica


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ranks replicas by ``routing_key.preferred``. Serve takes the first one that has room."""

    def initialize_state(self, slack: int) -> None:
        """Called by Serve with ``request_router_kwargs``."""
        self._slack = slack

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The ranks, best first."""
        key = ""
        if pending_request is not None:
            # All replicas are looked at each time: where none has room, Serve waits before it asks again.
            pending_request.routing_context.should_backoff = True
            key = next((each.key for each in pending_request.args if isinstance(each, Forwarded)), "")
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self.replica_queue_len_cache.get(replica.replica_id) or 0 for name, replica in named.items()}
        ranks = preferred(key, loads, self._slack)
        return [[named[name] for name in rank] for rank in ranks]
