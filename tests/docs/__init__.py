"""The documents: their code runs, their links lead somewhere, their commands exist."""
