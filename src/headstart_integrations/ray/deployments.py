"""The two deployments of an application: gateways and replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.types import ASGIApp, Message, Scope

from headstart_integrations.ray.arguments import RayArguments
from headstart_integrations.ray.forwarding import Forwarded
from headstart_integrations.ray.gateway import FullError, Gateway, LostReplicaError
from headstart_integrations.ray.replica import Replica
from headstart_server.access import AccessControl
from headstart_server.settings import ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle

_LOST = (RayActorError, ActorDiedError, ActorUnavailableError, DeploymentUnavailableError, ReplicaUnavailableError)
_ALL_SECONDS = 10.0
"""Patience with replicas that are asked all together."""
_SPARE = 16
"""Requests of a replica that are not generation."""
_PARTING_SECONDS = 5.0
"""From the end of a drain to the end of the process."""


class ServeReplica(Replica):
    """Named by Serve."""

    def __init__(self, arguments: RayArguments, keys: tuple[str, ...]) -> None:
        super().__init__(serve.get_replica_context().replica_id.unique_id, arguments, keys)


class ServeGateway:
    """Holds the handle of the replicas; Serve asks it for the application that is run on each request."""

    def __init__(self, replicas: DeploymentHandle[Any], settings: ServerSettings) -> None:
        self._replicas = _Behind(replicas)
        self._settings = settings

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # Replicas check keys and hosts: the same code as without Ray. Here bodies are bounded alone.
        open_to_all = ServerSettings(self._settings.served_name, allowed_hosts=None)
        gateway = Gateway(self._replicas, self._settings.retry_after)
        return AccessControl(gateway, open_to_all, (), partial(_body_limit, open_to_all))


def _body_limit(settings: ServerSettings, scope: Scope) -> int:
    """Bytes of a request's body at most, whatever it asks for: forms may hold recordings."""
    if scope["method"] != "POST":
        return 0
    form = any(name == b"content-type" and kind.startswith(b"multipart/") for name, kind in scope["headers"])
    return settings.max_audio_bytes if form else settings.max_body_bytes


class _Behind:
    """Replicas behind Serve's handle."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._streaming = handle.options(stream=True)

    async def answer(self, request: Forwarded) -> AsyncIterator[list[Message]]:
        response = self._streaming.answer.remote(request)
        finished = False
        try:
            async for messages in response:
                yield messages
            finished = True
        except _LOST as error:
            raise LostReplicaError from error
        except BackPressureError as error:
            raise FullError from error
        finally:
            if not finished:
                response.cancel()

    async def all(self, request: Forwarded) -> Sequence[dict[str, Any]]:
        found = await self._handle.broadcast("whole", request).results_async(
            timeout_s=_ALL_SECONDS, return_exceptions=True
        )
        return [each for each in found if isinstance(each, dict)]


def deploy(arguments: RayArguments, keys: tuple[str, ...]) -> Application:
    """Gateways before replicas, as ``serve.run`` takes them."""
    ongoing = arguments.max_batch_size + arguments.max_waiting + _SPARE
    fewest, most = arguments.bounds
    number: dict[str, Any] = {"num_replicas": most}
    if arguments.scales:
        aim = arguments.target_ongoing_requests or arguments.max_batch_size
        delays = {"upscale_delay_s": arguments.upscale_seconds, "downscale_delay_s": arguments.downscale_seconds}
        given = {name: seconds for name, seconds in delays.items() if seconds is not None}
        scaling = AutoscalingConfig(min_replicas=fewest, max_replicas=most, target_ongoing_requests=aim, **given)
        number = {"autoscaling_config": scaling}
    actor: dict[str, Any] = {"num_cpus": arguments.cpus_per_replica, "num_gpus": arguments.gpus_per_replica}
    variables = {"OMP_NUM_THREADS": str(arguments.threads)}
    replicas = serve.deployment(
        name="Replica",
        max_ongoing_requests=ongoing,
        max_queued_requests=ongoing * max(most, 1),
        graceful_shutdown_timeout_s=arguments.drain_seconds + _PARTING_SECONDS,
        health_check_period_s=5,
        ray_actor_options=actor | {"runtime_env": {"env_vars": variables}},
        request_router_config=RequestRouterConfig(
            request_router_class="headstart_integrations.ray.router.PrefixRouter",
            request_router_kwargs={"slack": arguments.affinity_slack},
        ),
        **number,
    )(ServeReplica)
    gateways = serve.deployment(
        name="Gateway",
        num_replicas=arguments.gateways,
        max_ongoing_requests=10 * ongoing * max(most, 1),
        graceful_shutdown_timeout_s=arguments.drain_seconds + _PARTING_SECONDS,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(ServeGateway))
    application: Application = gateways.bind(replicas.bind(arguments, keys), arguments.settings(()))
    return application
