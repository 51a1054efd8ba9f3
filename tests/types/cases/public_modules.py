"""The public modules are typed: an unknown name is an error in the user's editor."""

from typing import assert_type

import mesh_fs
import mesh_jobs

assert_type(mesh_fs.MountOptions().backend, str)

mesh_jobs.submit_everything()  # expect-error: no such name
