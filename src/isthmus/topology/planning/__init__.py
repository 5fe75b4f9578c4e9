"""The parts of `isthmus.topology.planning.planner`: what is wanted, each kind of entity against what stands, and the order of changes."""
