"""Checks of settings that concern what a task is made of, beyond one pattern."""
