"""Jobs: allocation, status, hosts as meshes."""
