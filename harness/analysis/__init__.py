"""Reads records, and nothing else: frames, statistics, tables, figures."""
