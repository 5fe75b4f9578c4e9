"""Checks of settings that concern the parts of a task, independent of its pattern."""
