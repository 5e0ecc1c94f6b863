"""Results as text for people and JSON for programs: pure functions."""
