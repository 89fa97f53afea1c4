"""Plans a run, starts its workers and keeps what they say. Never imports a framework."""
