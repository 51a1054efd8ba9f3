"""What the kernel and Python cost by themselves: nothing here routes, supervises or recovers."""
