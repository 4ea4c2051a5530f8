"""The objective and the loop."""
