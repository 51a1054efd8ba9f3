"""Several packages in one program."""
