"""Get hosts from a scheduler once, and run program after program on them."""

from mesh_jobs._exec import exec_command as exec_command
from mesh_jobs._forward import PortForwarder as PortForwarder
from mesh_jobs._shell import shell as shell
