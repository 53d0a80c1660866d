"""Checks of a run before it starts: settings, mesh, memory, versions, equal results on any mesh."""
