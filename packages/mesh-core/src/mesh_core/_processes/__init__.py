"""Starting and ending the processes of a host."""
