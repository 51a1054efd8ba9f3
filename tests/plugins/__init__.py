"""Whatever is installed as a plug-in."""
