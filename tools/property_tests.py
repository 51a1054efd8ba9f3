"""The settings of property tests, as a plugin of pytest that `tools.twice` loads."""

from hypothesis import settings

# The time that an example takes depends on the load of the machine.
settings.register_profile("mesh", deadline=None)
settings.load_profile("mesh")
