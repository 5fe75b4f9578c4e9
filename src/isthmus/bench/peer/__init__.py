"""What others use for the same job, run beside isthmus on the same machine in the same run."""
