"""Starting and stopping the processes of a host."""
