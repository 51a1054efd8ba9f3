"""Cases: the messages of actors before a failure, in one data-only file."""
