"""Jobs: their allocation, their status, and their hosts as meshes."""
