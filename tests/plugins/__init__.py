"""All installed plug-ins."""
