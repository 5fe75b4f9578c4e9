"""What a run watches beside its routes: backlogs, how full entities are, canaries."""
