"""Reference data of the step `enrich`: its sources and its values."""
