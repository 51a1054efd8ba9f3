"""Jobs on schedulers that the machine must provide: a real sshd, and third-party backends."""
