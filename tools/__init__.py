"""The tools to build, check and release the repository. They are not shipped."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # reported here, before an import fails
    raise SystemExit(f"python is {sys.version.split()[0]}: use python 3.11 or newer")
