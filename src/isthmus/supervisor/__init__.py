"""Keeps routes running: starts them, watches that messages move, restarts what fails, drains and stops."""
