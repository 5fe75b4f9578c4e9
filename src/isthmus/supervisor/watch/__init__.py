"""The measurements of a run: backlogs, fill of entities, canaries."""
