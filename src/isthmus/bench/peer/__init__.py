"""Other products for the same job, measured with isthmus on the same machine in the same run."""
