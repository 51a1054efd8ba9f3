"""Names for programs that were written for Monarch, which new programs do not need.

`mesh_core` has all other names of `monarch.actor` and `monarch.config`. The names of this module
have a replacement in Mesh:

- `attach(address)`: the argument `gateway` of `mesh_core.attach_to_workers`.
- `current_size()` and `current_actor_name()`: `mesh_core.current_rank().extent` and
  `mesh_core.context().actor_instance.actor_id`.
- `default_bootstrap_cmd()`: `mesh_core.BootstrapCommand.default()`.
- `get_global_config()`: `mesh_core.Config.current()`. `get_runtime_config()` and
  `clear_runtime_config()`: a `with mesh_core.configured(...)` block, which reverts its settings.
- `run_worker_loop_forever()`, `run_worker_loop_until_shutdown()` and `start_worker_loop_forever()`:
  `mesh_core.run_worker()`, or the command `python -m mesh_core.worker`.
- `send(endpoint, ...)`: the methods of an endpoint, such as `call` and `broadcast`.
- `RankedPortReceiver`: the type of `mesh_core.PortReceiver.ranked()`.
- `Shape` and `Slice`: `mesh_core.Extent` and `mesh_core.Region`.
- `Uid`: the strings `mesh_core.ProcId` and `mesh_core.ActorAddr`.
"""

from mesh_core._actors.context import current_actor_name as current_actor_name
from mesh_core._actors.context import current_size as current_size
from mesh_core._calls.channel import RankedPortReceiver as RankedPortReceiver
from mesh_core._calls.endpoint import send as send
from mesh_core._configuration.config import clear_runtime_config as clear_runtime_config
from mesh_core._configuration.config import get_global_config as get_global_config
from mesh_core._configuration.config import get_runtime_config as get_runtime_config
from mesh_core._hosts.attach import attach as attach
from mesh_core._ids import Uid as Uid
from mesh_core._processes.command import default_bootstrap_cmd as default_bootstrap_cmd
from mesh_core._shapes.shape import Shape as Shape
from mesh_core._shapes.shape import Slice as Slice
from mesh_core._workers.serve import run_worker_loop_forever as run_worker_loop_forever
from mesh_core._workers.serve import (
    run_worker_loop_until_shutdown as run_worker_loop_until_shutdown,
)
from mesh_core._workers.serve import start_worker_loop_forever as start_worker_loop_forever
