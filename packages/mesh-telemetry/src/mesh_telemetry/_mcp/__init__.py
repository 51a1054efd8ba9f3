"""A server of the Model Context Protocol, through which coding agents inspect running programs."""
