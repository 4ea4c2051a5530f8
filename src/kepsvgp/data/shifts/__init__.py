"""Test sets under corruptions: the official arrays, or generated ones."""
