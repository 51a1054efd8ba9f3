"""The part of `mesh_core.testing` that needs pytest."""

from mesh_core._testing.config import parametrize_config as parametrize_config
from mesh_core._testing.config import parametrize_config_pointwise as parametrize_config_pointwise
from mesh_core._testing.fixtures import local_procs as local_procs
