"""Runs on disk: one folder format, one reader."""
