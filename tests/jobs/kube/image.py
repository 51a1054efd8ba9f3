"""The image of the pods of tests.

Pods of the stand-in, and of other kubelets that run pods as processes, use the files of this
machine, and the name of their image does not matter. On a cluster with containers, the variable
`MESH_TEST_IMAGE` names an image in which `python` has the packages of the tests.
"""

from __future__ import annotations

import os
import sys

from mesh_jobs import ImageSpec

NAME = os.environ.get("MESH_TEST_IMAGE", "mesh-test")
#: Whether pods have a separate file system, without the files of this machine.
IS_IN_CONTAINERS = "MESH_TEST_IMAGE" in os.environ
PYTHON = "python" if IS_IN_CONTAINERS else sys.executable
IMAGE = ImageSpec(NAME, python=PYTHON)
#: An image that no registry has.
MISSING = "missing.invalid/none:1"
