"""Jobs on schedulers that the machine has to have: a real sshd, and what third parties bring."""
