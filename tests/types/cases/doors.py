"""The doors are typed: a name that is not there is an error in the user's editor."""

from typing import assert_type

import mesh_fs
import mesh_jobs

assert_type(mesh_fs.MountOptions().backend, str)

mesh_jobs.submit_everything()  # expect-error: there is no such name
