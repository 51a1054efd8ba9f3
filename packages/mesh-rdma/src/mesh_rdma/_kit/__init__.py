"""The conformance kit that every transport passes."""
