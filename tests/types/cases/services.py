"""The handle of a service has the endpoints of its actors, with their full types."""

from typing import Literal, assert_type

from mesh_core import Actor, Future, ValueMesh, endpoint, this_host
from mesh_core.services import Autoscale, HealthCheck, Service, ServiceOptions, ServiceStatus


class Generator(Actor):
    def __init__(self, model: str, *, width: int = 1) -> None:
        self.model = model

    @endpoint
    async def generate(self, prompt: str, temperature: float = 1.0) -> list[str]:
        return [prompt]

    @endpoint
    def load(self, version: int) -> None: ...


class Other(Actor):
    @endpoint
    def nothing(self) -> None: ...


options = Service.options(num_replicas=2, procs={"gpus": 2}, retries={"generate": 1})
assert_type(options, ServiceOptions)
service = options.spawn("generators", Generator, "tiny", width=2)
assert_type(service, Service[Generator])
assert_type(Service.spawn("generators", Generator, "tiny"), Service[Generator])

options.spawn("generators", Generator)  # expect-error: model is missing
options.spawn("generators", Generator, 3)  # expect-error: model is a str
Service.spawn("generators", Generator, "tiny", width="no")  # expect-error: width is an int
Service.options(num_replicas="many")  # expect-error: an int
Service.options(autoscale=Autoscale(4), health_check=HealthCheck("load", period_s=1.0))
Service.options(health_check="load")  # expect-error: a HealthCheck

assert_type(service.handle, Generator)
generators = service.handle
assert_type(generators.generate.route("a"), Future[list[str]])
assert_type(generators.generate.route("a", temperature=0.5).get(), list[str])
assert_type(generators.generate.fanout("a"), Future[ValueMesh[list[str]]])
assert_type(generators.load.broadcast(3), None)
assert_type(generators.generate.options(timeout=1.0).route("a"), Future[list[str]])

generators.generate.route(3)  # expect-error: prompt is a str
generators.generate.route()  # expect-error: prompt is missing
generators.generate.fanout("a", 0.5, 1)  # expect-error: one argument too many
generators.absent.route()  # expect-error: no such endpoint

# A mesh supports the same calls, so that a function can accept either.
mesh = this_host().spawn_procs({"gpus": 2}).spawn("mesh", Generator, "tiny")
assert_type(mesh.generate.route("a"), Future[list[str]])
assert_type(mesh.generate.fanout("a"), Future[ValueMesh[list[str]]])


async def program() -> None:
    async with service.session() as s:
        assert_type(s, Generator)
        assert_type(await s.generate.route("a"), list[str])
        await s.generate.route(3)  # expect-error: prompt is a str
    with service.session(on_move="ignore") as quiet:
        assert_type(quiet, Generator)
    service.session(on_move="forget")  # expect-error: raise or ignore
    async with service as same:
        assert_type(same, Service[Generator])
    assert_type(await service.resize(3), None)
    assert_type(await service.settled(), None)
    assert_type(await service.status(), ServiceStatus)
    assert_type(await service.initialized, Literal[True])
    assert_type(service.update(Generator, "large"), Future[None])
    service.update(Generator, 3)  # expect-error: model is a str
    service.update(Other)  # expect-error: another class
