"""Processes in which the SQL of users runs: what a query takes or breaks stays there."""
