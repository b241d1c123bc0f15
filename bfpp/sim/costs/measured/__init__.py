"""Costs that were measured: profiles of passes, and recorded steps."""
