"""Reference data of the step `enrich`: where it is read from, and what a value of it is."""
